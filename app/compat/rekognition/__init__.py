"""Amazon Rekognition's wire format: `POST /`, AWS JSON 1.1, signed with SigV4. See docs/reference/drop-ins.md."""
