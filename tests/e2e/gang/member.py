"""One member of a gang that counts steps at its own pace, saves when asked to stop, and says where it stopped."""

import time

import tidegate

STEPS = 400
STEPS_PER_PHASE = 25

job = tidegate.init()
checkpoint = job.latest_checkpoint()
step = checkpoint.load("state")["state"]["step"] if checkpoint else 0
print(f"rank {job.rank} of {job.world_size} begins at {step}", flush=True)
while step < STEPS:
    with job.phase("sampling" if step // STEPS_PER_PHASE % 2 else "learning"):
        for _ in range(STEPS_PER_PHASE):
            time.sleep(0.01 + 0.005 * job.rank)
            step += 1
            job.report({}, step=step, progress=min(1.0, step / STEPS))
            if job.should_stop():
                print(f"rank {job.rank} stops at {step}", flush=True)
                if job.rank == 0:
                    job.save(state={"step": step}, step=step, wait=True)
                job.exit_suspended()
job.finish(result={"step": step})
