"""What is done with a set before it is trained on: aligning, checking, overlap with another, blending."""
