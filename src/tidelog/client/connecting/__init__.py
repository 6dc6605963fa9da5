"""One connection to a broker or controller: frames, versions, deadlines, proof of the secret."""
