"""What people ask of jobs, queues, nodes: pure judgements on the view that give an event to write, or say why not."""
