"""Which code gets faults, and which tests are nearest to it."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "torchipu"
NEAREST: dict[str, tuple[str, ...]] = {
    "passes/canonicalise.py": ("passes/test_canonicalise.py", "goldens"),
    "passes/placement.py": ("passes/test_placement.py", "test_bad_placements.py"),
    "passes/precision.py": (
        "passes/test_precision.py", "numerics/test_half_partials.py", "numerics/test_rounding_in_steps.py",
    ),
    "passes/recompute.py": ("passes/test_recompute.py",),
    "optable/dead_ops.py": ("passes/test_canonicalise.py", "passes/test_pieces.py"),
    "optable/emission.py": (
        "kernels/test_strided_stores.py", "ops/test_stores_of_chains.py", "kernels/test_elementwise.py",
    ),
    "optable/pieces.py": ("passes/test_pieces.py",),
    "passes/padded_sums.py": ("passes/test_pieces.py",),
    "passes/written_pieces.py": ("passes/test_pieces.py",),
    "passes/shared_indices.py": ("passes/test_shared_indices.py",),
    "device/lower/functions.py": ("device/test_lower.py", "goldens", "passes/test_control_flow.py"),
    "device/lower/values.py": (
        "device/test_flow.py", "device/test_lower.py", "goldens", "poptorch/test_overlap.py",
        "numerics/test_mean_reductions.py", "passes/test_control_flow.py",
    ),
    "device/lower/collectives.py": ("device/test_collectives.py", "device/test_lower.py", "device/test_cost.py"),
    "device/lower/cycles.py": ("device/test_lower.py", "device/test_cost.py"),
    "device/schedule.py": ("device/test_schedule.py",),
    "device/order.py": ("device/test_order.py", "device/test_memory.py"),
    "device/memory/addresses.py": ("device/test_memory.py", "report/test_invariants.py"),
    "device/memory/liveness.py": ("device/test_memory.py", "device/tiles/test_in_place.py"),
    "device/memory/peaks.py": ("device/test_memory.py", "report/test_invariants.py"),
    "device/memory/always.py": ("device/test_memory.py", "report/test_invariants.py"),
    "host/phases.py": ("host/test_phases.py",),
    "host/arena.py": ("host/test_arena.py", "host/test_planner.py"),
    "host/groups.py": ("host/test_groups.py", "host/test_planner.py", "host/test_phases.py"),
    "host/concatenation.py": ("host/test_concatenation.py",),
    "host/folded_chains.py": ("host/test_folded_chains.py",),
    "host/emit/batch_norm_blocked.py": ("kernels/test_batch_norm_blocked.py", "host/test_layouts_of_training.py"),
    "backend/fitting.py": ("test_fitting.py",),
    "capture/checkpointed_norms.py": ("capture/test_checkpointed_norms.py",),
    "host/edge.py": (
        "host/test_bfloats.py", "host/test_written_inputs.py", "host/test_orders_of_results.py", "test_saved_copies.py",
        "host/test_copied_results.py",
    ),
    "host/orders.py": ("host/test_orders.py", "host/test_order_of_chains.py", "host/test_orders_of_results.py"),
    "host/emit/depthwise_blocked.py": (
        "kernels/test_conv_blocked.py", "kernels/test_depthwise_gradients.py",
        "host/test_what_follows_convolutions.py",
    ),
    "ops/blocked/convolution.py": (
        "host/test_what_follows_convolutions.py", "host/test_blocked_halves.py", "host/test_layouts_of_inference.py",
    ),
    "ops/fusions/distances.py": ("numerics/test_distances.py",),
    "poptorch/tracing/windows.py": ("poptorch/test_windows.py",),
    "popdist/__init__.py": ("poptorch/test_popdist.py",),
    "pva/execution.py": ("report/test_pva.py",),
    "step/edge.py": (
        "test_edge_of_calls.py", "test_step.py", "test_executor_tiles.py", "parts/test_cut_and_order.py",
    ),
    "backend/any_size.py": ("test_any_size.py", "test_bound_of_plans.py"),
    "backend/left_frames.py": ("test_left_frames.py",),
    "backend/symbolic.py": ("test_any_size.py",),
    "capture/left_code.py": ("test_left_frames.py",),
    "capture/mutating_ops.py": ("capture/test_mutating_ops.py",),
    "capture/symbols.py": ("test_any_size.py",),
    "ir/verify.py": ("ir/test_verify.py",),
    **{f"ir/{name}.py": ("ir/test_sizes.py", "test_any_size.py") for name in ("sizes", "size", "formulas", "guards")},
}
"""Tests below ``tests`` by file of the package."""
FURTHER = ("device/tiles/test_programs.py", "host/test_planner.py")
"""Run where the nearest notice nothing: models that are trained vertex by vertex, and plans beside eager."""
