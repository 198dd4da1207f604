"""``torchipu.autopipeline``: captures a model, searches for stages, lets the machine model judge, and proposes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchipu.compiler import computing, try_graph
from torchipu.device.locations import places
from torchipu.device.memory import tile_memory
from torchipu.errors import OptionsError, OutOfTileMemoryError, PlacementError
from torchipu.ir.graph import Graph
from torchipu.ir.modules import Module, block_name, fine_modules, modules_of, with_blocks
from torchipu.ir.types import Leg, Role
from torchipu.options import Options, given_or_default
from torchipu.partition.model import ALL, NONE, Model
from torchipu.partition.proposal import Proposal, check_paths, check_unmarked
from torchipu.partition.search import Cuts, least, ranked, relaxed
from torchipu.partition.trial import BLOCKS_A_STAGE, Blocks, Trial, blocks_of, recomputed, try_stages
from torchipu.partition.units import edges_of, units_of
from torchipu.passes.canonicalise import canonicalise
from torchipu.passes.placement import place
from torchipu.passes.recompute import recompute
from torchipu.step import InferenceStep, TrainStep
from torchipu.step.compiling import Capturing
from torchipu.target import Target, lookup_target

UNITS_A_STAGE = 12
"""A module is taken apart where it takes more than this part of a stage."""
WHOLES_A_STAGE = BLOCKS_A_STAGE
"""The same for cuts that leave larger modules whole."""
MOST_TRIALS = 12
NEAR, NEAR_TRIALS = 1.01, 3
"""Choices that the estimate has by so much slower than the best are tried too, while there are few trials."""
RELAXED_TRIALS = 3
"""So many of them are for less recomputation than the estimate allows."""


def autopipeline(
    model: torch.nn.Module, example: Any, num_ipus: int, *, optimizer: torch.optim.Optimizer | None = None,
    options: Options | None = None, training: bool | None = None,
) -> Proposal:
    """Propose blocks, pipeline stages and recomputation by the machine model.

    The model is captured once. Cycles and bytes of its modules, as the machine model has them on one IPU, go into a
    search for stages of which the slowest is as fast as can be and which fit the tiles; what it finds is compiled,
    without addresses, and the compiled program decides. Print the proposal to see why; ``accept()`` takes it:

        step = torchipu.TrainStep(model, optimizer, torchipu.autopipeline(model, (x, y), 4).accept())

    Args:
        model: A module without blocks; it is left as it is until the proposal is accepted.
        example: Inputs of one micro-batch: a tensor, a tuple of arguments, or a dict of keyword arguments.
        num_ipus: IPUs that the pipeline may use; fewer are used where that is faster.
        optimizer: What trains the model, for its states and its update; None stands for plain SGD.
        options: Everything else: target, gradient accumulation, replicas, precision. Gradient accumulation (device
            iterations in inference) is raised to what the pipeline needs.
        training: Whether to place a training step; None takes the mode that the model is in.

    Returns:
        The proposal.

    Raises:
        OptionsError: ``num_ipus`` is no number from 1, or the options place the model already.
        PlacementError: The machine has fewer IPUs, or the model has blocks already.
        OutOfTileMemoryError: Nothing found fits, and the options do not allow that.
    """
    return proposal_of(model, example, num_ipus, optimizer, given_or_default(options), training)


def proposal_of(
    model: torch.nn.Module, example: Any, num_ipus: int, optimizer: torch.optim.Optimizer | None, options: Options,
    training: bool | None, capturing: Capturing | None = None,
) -> Proposal:
    """Propose as `autopipeline` does.

    Args:
        model: As there.
        example: As there.
        num_ipus: As there.
        optimizer: As there.
        options: As there.
        training: As there.
        capturing: Is given what captures the model, and returns the capture, which several proposals may share.
    """
    target = lookup_target(options.target)
    _check(model, num_ipus, options, target)
    is_training = model.training if training is None else training
    step = _step(model, optimizer, options, is_training=is_training)
    arguments, keywords = _arguments(example)
    graph = canonicalise(step.graph_of(arguments, keywords, capturing))
    _check_graph(graph)
    return _Search(model, graph, options, target, num_ipus, is_training).propose()


def _check(model: torch.nn.Module, num_ipus: int, options: Options, target: Target) -> None:
    if not isinstance(num_ipus, int) or isinstance(num_ipus, bool) or num_ipus < 1:
        raise OptionsError(
            f"num_ipus must be a whole number from 1, got {num_ipus!r}", option="num_ipus", value=num_ipus,
        )
    for name in ("stages", "blocks"):
        if getattr(options, name) is not None:
            raise OptionsError(
                f"options.{name} places the model already", option=name, value=getattr(options, name), allowed="None",
                remedy=f"leave {name} out; Proposal.compare judges a split of your own",
            )
    if num_ipus * options.replicas > target.num_ipus:
        raise PlacementError(
            f"{options.replicas} x {num_ipus} IPUs are asked for, but {target.name} has {target.num_ipus}",
            remedy=f"use at most {target.num_ipus // options.replicas} IPUs for each of the replicas"
            if options.replicas <= target.num_ipus else f"use at most {target.num_ipus} replicas",
        )
    if isinstance(model, torch.nn.Module):
        check_unmarked(model)


def _check_graph(graph: Graph) -> None:
    marked = next((op for op in graph.ops if op.block is not None), None)
    if marked is not None and marked.block is not None:
        raise PlacementError(
            f"the model puts ops into block {marked.block[0]!r} already", source=marked.source,
            remedy="take torchipu.Block out of its forward; Proposal.compare judges a split of your own",
        )


def _arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example), {}) if isinstance(example, (tuple, list)) else ((example,), {})


def _step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, options: Options, *, is_training: bool,
) -> TrainStep | InferenceStep:
    """Return the step whose graph is placed; two micro-batches stand for several, so that gradients have accumulators.

    In inference one is as good as several.
    """
    if not is_training:
        return InferenceStep(model, options)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return TrainStep(
        model, optimizer or torch.optim.SGD(trained, lr=0.1),
        replace(options, gradient_accumulation=max(2, options.gradient_accumulation)),
    )


@dataclass(slots=True)
class _Search:
    """What a search knows.

    Attributes:
        model: The model.
        graph: Its graph, canonicalised, without blocks.
        options: The user's.
        target: The machine.
        num_ipus: The most IPUs.
        is_training: Whether there is a backward.
    """

    model: torch.nn.Module
    graph: Graph
    options: Options
    target: Target
    num_ipus: int
    is_training: bool

    def propose(self) -> Proposal:
        """Search, try, and state why."""
        alone = try_graph(self.graph, replace(self.options, recompute="none"), self.target)
        cycles = alone.cost.cycles_by_result
        root = modules_of(self.graph, cycles)
        modules = fine_modules(root, root.cycles / (self.num_ipus * UNITS_A_STAGE))
        model = self._model(modules, cycles)
        larger = {module.begin for module in fine_modules(root, root.cycles / (self.num_ipus * WHOLES_A_STAGE))}
        model.whole = frozenset(number for number, module in enumerate(modules) if module.begin in larger)
        # What one IPU needs beyond the estimate is a first guess of what a stage does.
        needed = tile_memory(alone.executable, self.target)[0].occupied_bytes
        guess = needed - model.tile_bytes([((0, len(modules), 0), NONE)], False)
        model.unlearnt_bytes = min(max(0.0, guess), 0.1 * self.target.tile_memory_bytes)
        tried = self._try_all(root, modules, model)
        fitting = [trial for _, trial in tried if trial.fits]
        if not fitting and not self.options.allow_out_of_memory:
            raise self._nothing_fits([trial for _, trial in tried])
        best = min(fitting, key=lambda trial: trial.cycles) if fitting else min(
            (trial for _, trial in tried), key=lambda trial: trial.overflow_bytes,
        )
        reasons = tuple(self._reasons(best, [trial for _, trial in tried], model, len(modules)))
        return Proposal(self.model, best, reasons, self.compare)

    def _model(self, modules: list[Module], cycles: dict[Any, int]) -> Model:
        """Return the units with their costs."""
        # Each unit has an IPU of its own, so that what crosses from one to another shows.
        wide = replace(self.target, num_ipus=len(modules))
        paths = {module.path: (block_name(module.path), number) for number, module in enumerate(modules)}
        plain = replace(self.options, replicas=1, num_ipus=None, input_group_size=1, batch_norm_group_size=1)
        placed = place(with_blocks(self.graph, paths), plain, wide)
        names = tuple(block_name(module.path) for module in modules)
        clones = recompute(placed, replace(self.options, recompute=names))
        counted = self.options.gradient_accumulation if self.is_training else self.options.device_iterations
        tables, choices = self._cycles_by_ipu(cycles)
        states = places(self.options)[Role.OPTIMISER_STATE]
        return Model(
            units_of(placed, modules, tables, clones, self.target), edges_of(placed, modules),
            computing(self.target, self.options),
            self.is_training, counted, self.options.execution, self.options.sync_pattern == "full", choices,
            not states.on_chip, 1 / self.options.replicas if states.replicated_sharding else 1.0,
        )

    def _cycles_by_ipu(self, cycles: dict[Any, int]) -> tuple[list[dict[Any, int]], list[int]]:
        """Return the cycles of all ops for each available memory, and which of these holds on each IPU."""
        given = self.options.available_memory or {}
        parts = [given.get(ipu) for ipu in range(self.num_ipus)]
        tables = {parts[0]: cycles}
        for part in parts:
            if part not in tables:
                options = replace(self.options, recompute="none", available_memory={0: part} if part else None)
                tables[part] = try_graph(self.graph, options, self.target).cost.cycles_by_result
        return list(tables.values()), [list(tables).index(part) for part in parts]

    def _try_all(self, root: Module, modules: list[Module], model: Model) -> list[tuple[Cuts, Trial]]:
        """Try the fastest choice, learn from what it needs, and go on until nothing faster is left to try."""
        tried: dict[object, tuple[Cuts, Trial]] = {}
        has_states = any(tensor.role is Role.OPTIMISER_STATE for tensor in self.graph.inputs)
        for off_chip in (False, True) if has_states and not model.states_off_chip else (False,):
            if not any(trial.fits for _, trial in tried.values()):
                self._try_some(root, modules, model, tried, off_chip=off_chip)
        return list(tried.values())

    def _try_some(
        self, root: Module, modules: list[Module], model: Model, tried: dict[object, tuple[Cuts, Trial]], *,
        off_chip: bool,
    ) -> None:
        for number in range(MOST_TRIALS):
            found = ranked(model, self.num_ipus, off_chip=off_chip)
            cuts = self._next(model, tried, found, is_last=number >= MOST_TRIALS - RELAXED_TRIALS, off_chip=off_chip)
            if cuts is None:
                break
            stages = blocks_of(root, modules, cuts, model.whole)
            trial = self._try(stages, cuts.ipus, recomputed(stages, cuts.kinds), off_chip=cuts.off_chip)
            tried[cuts.key] = (cuts, trial)
            self._learn(model, cuts, trial)

    def _next(
        self, model: Model, tried: Mapping[object, tuple[Cuts, Trial]], found: Sequence[Cuts], *, is_last: bool,
        off_chip: bool,
    ) -> Cuts | None:
        """Return the choice to try next: faster than all that fit, or, where none does, what needs least."""
        fitting = [pair for pair in tried.values() if pair[1].fits]
        best = min(fitting, key=lambda pair: pair[1].cycles, default=None)
        # The estimate is off by about the same everywhere.
        limit = best[0].cycles if best else float("inf")
        choices = [cuts for cuts in found if cuts.key not in tried and cuts.cycles < limit]
        if best and (is_last or not choices):
            choices = [cuts for cuts in relaxed(model, best[0]) if cuts.key not in tried] or choices
        if best and not choices and len(tried) < NEAR_TRIALS:
            choices = [cuts for cuts in found if cuts.key not in tried and cuts.cycles < limit * NEAR]
        if not choices and not best:
            choices = [cuts for cuts in least(model, self.num_ipus, off_chip=off_chip) if cuts.key not in tried]
        return choices[0] if choices else None

    def _try(
        self, stages: Sequence[Blocks], ipus: Sequence[int], recompute: str | tuple[str, ...], *,
        off_chip: bool,
    ) -> Trial:
        options = replace(self.options, offload_optimiser_state=off_chip or self.options.offload_optimiser_state)
        least = (2 if self.is_training else 1) * (len(stages) - 1) + 1
        counted = self.options.gradient_accumulation if self.is_training else self.options.device_iterations
        return try_stages(
            self.graph, stages, ipus, recompute, options, self.target, is_training=self.is_training,
            micro_batches=max(least, counted),
        )

    def _learn(self, model: Model, cuts: Cuts, trial: Trial) -> None:
        """Note for each IPU what it needs beyond the estimate."""
        for ipu, parts in model.parts(cuts.begins, cuts.ipus, cuts.kinds).items():
            model.learn(parts, cuts.off_chip, trial.memory[ipu].occupied_bytes)

    def _nothing_fits(self, trials: list[Trial]) -> OutOfTileMemoryError:
        best = min(trials, key=lambda trial: trial.overflow_bytes)
        fullest = max(best.memory, key=lambda memory: memory.total_bytes)
        available = self.target.tile_memory_bytes
        return OutOfTileMemoryError(
            f"no split over {self.num_ipus} IPU{'s' * (self.num_ipus > 1)} fits: the best of {len(trials)} tried needs "
            f"{fullest.total_bytes} B on tile {fullest.tile} of ipu {fullest.ipu}, but a tile of {self.target.title} "
            f"has {available} B",
            ipu=fullest.ipu, tile=fullest.tile, needed_bytes=fullest.total_bytes, available_bytes=available,
            detail=str(Proposal(self.model, best, (), self.compare)),
            remedy="give more IPUs or a smaller micro-batch, or set allow_out_of_memory=True to be shown the best",
        )

    def _reasons(self, best: Trial, trials: list[Trial], model: Model, num_units: int) -> Iterator[str]:
        """Yield why this choice was made."""
        yield f"{num_units} modules were weighed; {self._bound(best)}"
        yield from self._revisits(best)
        fullest = max(best.memory, key=lambda memory: memory.total_bytes)
        yield (
            f"the fullest tile, {fullest.tile} of ipu {fullest.ipu}, needs {fullest.total_bytes:,} of "
            f"{self.target.tile_memory_bytes:,} B"
        )
        for trial in trials:
            if trial is not best:
                verdict = f"{trial.cycles / best.cycles - 1:+.1%} cycles a micro-batch" if trial.fits else (
                    f"does not fit, by {trial.overflow_bytes:,} B a tile"
                )
                place = ", optimiser state off chip" if trial.options.offload_optimiser_state else ""
                yield f"{len(trial.stages)} stage{'s' * (len(trial.stages) > 1)} where {trial.words}{place}: {verdict}"
        if best.options.offload_optimiser_state and not self.options.offload_optimiser_state:
            yield "the states of the optimiser lie in Streaming Memory between updates, else no choice fits"
        if best.micro_batches > model.micro_batches:
            counted = "gradient_accumulation" if self.is_training else "device_iterations"
            yield f"{counted} is raised from {model.micro_batches} to {best.micro_batches}, what fills the pipeline"

    def _bound(self, best: Trial) -> str:
        """Return what a micro-batch of the full pipeline takes, and for what."""
        cost = best.compiled.cost
        busy = [0] * len(best.memory)
        for stage, ipu in enumerate(best.ipus):
            names = {f"{stage}F", f"{stage}B"}.intersection(cost.functions)
            busy[ipu] += sum(
                cost.functions[name].cycles - cost.functions[name].cycles_by_category["host"] for name in names
            )
        slowest = max(busy)
        words = (
            f"ipu {busy.index(slowest)}, which takes longest for a micro-batch, computes for {slowest:,} cycles, "
            f"{slowest * len(busy) / sum(busy) - 1:.1%} above the mean"
        )
        shared = cost.cycles_by_category_by_ipu[0]
        links = shared["link"] // best.micro_batches
        if links:
            words += f"; copies between IPUs take {links:,} more"
        return words

    def _revisits(self, best: Trial) -> Iterator[str]:
        """Yield why a stage is on the IPU of an earlier one."""
        homes = self._readers(best)
        for stage, ipu in enumerate(best.ipus):
            earlier = [number for number in range(stage) if best.ipus[number] == ipu]
            if earlier:
                shared = sorted({name for name, stages in homes.items() if stage in stages and earlier[0] in stages})
                why = f", where {shared[0]} is, which both read" if shared else ", which has time left"
                yield f"stage {stage} is on ipu {ipu} like stage {earlier[0]}{why}"

    def _readers(self, best: Trial) -> dict[str, set[int]]:
        """Return the stages whose forward reads each weight, by its name."""
        readers: dict[str, set[int]] = {}
        for op in best.compiled.graph.ops:
            if op.leg is Leg.FORWARD and op.placement is not None:
                for tensor in op.inputs:
                    if tensor.role is Role.WEIGHT:
                        readers.setdefault(tensor.name, set()).add(op.placement.stage)
        return readers

    def compare(self, starts: Mapping[str, int]) -> Trial:
        """Try a split by hand in all ways of recomputation."""
        check_paths(self.model, starts)
        stages: list[tuple[tuple[str, ...], ...]] = []
        ipus: list[int] = []
        for path, ipu in starts.items():
            if ipus and ipus[-1] == ipu:
                stages[-1] = (*stages[-1], (path,))
            else:
                stages.append(((path,),))
                ipus.append(ipu)
        tried = [self._try(stages, ipus, "none", off_chip=False)]
        if self.is_training and not tried[0].fits:
            tried.append(self._try(stages, ipus, "stage", off_chip=False))
            for again in self._again(tried[0]):
                kinds = [ALL if one else NONE for one in again]
                tried.append(self._try(stages, ipus, recomputed(stages, kinds), off_chip=False))
                if tried[-1].fits:
                    break
        fitting = [trial for trial in tried if trial.fits]
        if fitting:
            return min(fitting, key=lambda trial: trial.cycles)
        return min(tried, key=lambda trial: trial.overflow_bytes)

    def _again(self, trial: Trial) -> Iterator[tuple[bool, ...]]:
        """Yield which stages recompute: those on IPUs too full otherwise, then all but the last, then all."""
        full = [memory.total_bytes > self.target.tile_memory_bytes for memory in trial.memory]
        yield tuple(full[ipu] for ipu in trial.ipus)
        yield tuple(stage < len(trial.ipus) - 1 for stage in range(len(trial.ipus)))
        yield (True,) * len(trial.ipus)
