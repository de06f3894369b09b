"""Amazon Rekognition's wire format: `POST /`, AWS JSON 1.1, signed with SigV4. What maps to what: docs/moving.md."""
