"""What travels between client, daemon and forkserver, and nothing of how it gets there."""
