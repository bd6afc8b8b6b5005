"""Which layers share a KV source, and so how many dequants reuse saves. New: Geometry, LayerKind."""

from collections import Counter

from dsv4bench.workloads.geometry import geometry

layers = geometry("v41-flash").layers
before = Counter(layer.kv_source for layer in layers if layer.ratio)

print("before, one per compressed layer:", dict(before), "together", before.total())
print("after, one per source:", dict.fromkeys(before, 1), "together", len(before))
