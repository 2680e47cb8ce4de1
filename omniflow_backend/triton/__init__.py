"""The Triton side: role and workflow models, the channel between them, and the model repository."""
