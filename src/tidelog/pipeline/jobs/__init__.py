"""Owns the ready jobs, one file each; they share no state."""
