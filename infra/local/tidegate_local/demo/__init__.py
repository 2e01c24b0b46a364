"""The demo: the main job, run for real on a fresh local stack, every claim of it checked."""
