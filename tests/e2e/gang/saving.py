"""One member of a gang on several nodes: it holds some rows of a matrix, and saves them together with the others."""

import time

import numpy as np
import tidegate

STEPS = 160
SAVE_EVERY = 40
ROWS = 60

job = tidegate.init()
first, last = job.rank * ROWS // job.world_size, (job.rank + 1) * ROWS // job.world_size
found = job.restore()
step = found["state"]["step"] if found else 0
rows = found["model"]["w"][first:last] if found else np.zeros((last - first, 4))
assert (rows == step).all(), (step, rows)
print(f"rank {job.rank} of {job.world_size} begins at {step}", flush=True)


def save():
    """Save with the other ranks; every one is told of the same checkpoint."""
    model = {"w": tidegate.Shard(rows, (first, 0), (ROWS, 4))}
    saved = job.save(model=model, state={"step": step}, step=step, together=True, wait=True).wait()
    print(f"rank {job.rank} saved {saved.id} at {saved.step}", flush=True)


while step < STEPS:
    time.sleep(0.02 + 0.01 * job.rank)
    step += 1
    rows = rows + 1
    job.report({}, step=step, progress=min(1.0, step / STEPS))
    if job.should_stop():
        save()
        job.exit_suspended()
    if step % SAVE_EVERY == 0:
        save()
job.finish(result={"step": step, "sum": float(rows.sum())})
