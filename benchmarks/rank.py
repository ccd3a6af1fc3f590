"""One rank of a training job: builds its model, says 'ready', waits for a line, takes the first step, prints JSON.

python -m benchmarks.rank MODEL

LOCAL_RANK says which GPU; with fewer GPUs than ranks, they share.
"""

import json
import os
import sys
import time

import psutil
import torch

from benchmarks.models import Llama, resnet50


def main() -> None:
    """See the module's docstring."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.manual_seed(0)
    if sys.argv[1] == "llama":
        model, inputs = Llama().cuda(), torch.randint(0, 8_000, (2, 256), device="cuda")
    else:
        model, inputs = resnet50().cuda(), torch.randn(4, 3, 224, 224, device="cuda")
    print("ready", flush=True)
    sys.stdin.readline()
    started, before, own = time.monotonic(), cpu_seconds(), time.process_time()
    loss = torch.compile(model)(inputs).float().square().mean()
    loss.backward()
    torch.cuda.synchronize()
    told = {"seconds": time.monotonic() - started, "cpu": cpu_seconds() - before, "device": loss.device.index}
    told["own"] = time.process_time() - own
    print(json.dumps({**told, "loss": loss.item()}), flush=True)


def cpu_seconds() -> float:
    """Of this process and everything below it."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:4]) for process in processes)


if __name__ == "__main__":
    main()
