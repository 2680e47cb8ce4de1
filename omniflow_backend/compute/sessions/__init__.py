"""What sessions said so far, kept on the server as the very positions that the model read and wrote (paper, 5.1)."""
