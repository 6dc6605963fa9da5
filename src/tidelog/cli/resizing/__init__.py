"""What the commands say of topics that grow and shrink (KIP-253)."""
