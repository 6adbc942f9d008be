"""What the Transformer is good for beside translating, and weights from elsewhere."""
