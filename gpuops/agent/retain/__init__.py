"""Results kept where they outlive this node: a bucket, a volume, another node."""
