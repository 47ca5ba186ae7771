"""Trust regions: clips shape a token's loss, gates scale it without a gradient. One file each."""
