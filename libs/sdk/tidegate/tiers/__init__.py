"""Where checkpoints lie: hot on the node, warm in the cluster, cold in an object store; needs the package obstore."""
