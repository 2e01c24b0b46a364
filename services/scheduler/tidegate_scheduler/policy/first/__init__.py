"""Policy 1: settle, queue, fit, preempt, resize; kept as it decided, so that histories that name it verify."""
