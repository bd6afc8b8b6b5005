"""A kernel of the catalogue: make its inputs, run a provider, see its cost. New: Kernel, Provider, Cost."""

import torch

from dsv4bench.kernels import kernel

combine = kernel("combine")
tensors = combine.inputs(combine.examples[0], torch.Generator().manual_seed(0))
combine.provider("torch").build(tensors)()

print("columns that each row attends:", tensors["lens"].tolist())
print("bytes moved:", combine.cost(tensors).bytes_moved)
for provider in combine.providers:
    print(f"{provider.name}: {provider.needs.why_not('cpu') or 'runs on a CPU'}")
