"""The features by which a report is measured: those that Graphcore's PopVision had, and those that it never had.

    python -m tests.report.features docs/report_features.md
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

SUMMARY, MEMORY = "report/browser/test_summary.py", "report/browser/test_memory.py"
OPERATIONS, EVERYWHERE = "report/browser/test_operations.py", "report/browser/test_all_pages.py"
PAGES = "report/browser/test_pages.py"
DATA, REPORTS, LIMITS = "report/test_page_data.py", "report/test_reports.py", "report/test_limits.py"
_INTRODUCTION = """# Features of the report

Written by `python -m tests.report.features docs/report_features.md`; do not edit. What PopVision's Graph Analyser
showed of a program, and where [the report](report.md) shows it: {present} of {all}. What it never had: {own_present} of
{own}. Each has a test that holds it; one without is not counted.

"""
_HEAD = "| | feature | where | tests |\n| ---: | --- | --- | --- |\n"


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature.

    Attributes:
        what: Can be seen or done.
        where: On which page, and there.
        tests: Files below ``tests`` with the names of tests, without ``test_``; empty where it is not there.
    """

    what: str
    where: str
    tests: tuple[str, ...] = ()

    @property
    def is_present(self) -> bool:
        """Whether a test holds it."""
        return bool(self.tests)


def _of(file: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{file}::{name}" for name in names)


POPVISION = (
    Feature("the machine with its replicas and memory, and the sizes of the graph",
            "Environment: the machine, the program",
            _of(SUMMARY, "environment_tells_the_machine_and_how_large_the_program_is")),
    Feature("options with a filter", "Environment: all options, those that differ first",
            _of(SUMMARY, "options_versions_and_figures_are_filtered")),
    Feature("`framework.json` and `app.json`", "Environment: what lay beside the report when it was written",
            (*_of(SUMMARY, "notes_beside_the_report_stand_in_it"),
             *_of(REPORTS, "notes_that_cannot_be_read_say_why_and_others_are_settings"))),
    Feature("files of the report", "Environment: files with their sizes",
            _of(SUMMARY, "files_of_the_report_are_listed")),
    Feature("whether it fits, and how much of the memory is in use", "Overview; Insights",
            _of(SUMMARY, "insights_tell_what_is_in_use_and_the_five_fullest_tiles")),
    Feature("the five fullest tiles", "Insights; one opens in Memory",
            _of(SUMMARY, "insights_tell_what_is_in_use_and_the_five_fullest_tiles")),
    Feature("a histogram of how full tiles are", "Memory: how full tiles are",
            _of(SUMMARY, "tiles_are_counted_by_how_full_they_are")),
    Feature("the largest vertex code, vertex state and exchanges, of the model, an IPU or a tile",
            "Insights: largest parts",
            _of(SUMMARY, "the_largest_code_state_and_exchanges_of_the_model_an_ipu_or_a_tile")),
    Feature("the largest variables, those always held and those at the peak",
            "Insights: largest parts; Liveness, at the peak",
            _of(SUMMARY, "the_largest_variables_held_always_and_at_the_peak")),
    Feature("float32 variables that could be halves", "Insights, with what halves would lose where that was counted",
            _of(SUMMARY, "floats_that_could_be_halves_are_told_with_what_is_saved")),
    Feature("tips with what they save", "Overview and Insights: advice that was tried on the model",
            _of(PAGES, "tables_that_others_fill_are_shown")),
    Feature("memory by tile", "Memory: a map, or bytes by tile",
            _of(PAGES, "tiles_open_by_pointer_and_keys_in_both_pictures")),
    Feature("by region of the memory", "Memory: bytes by region", _of(MEMORY, "tiles_are_broken_down")),
    Feature("by category", "Memory: bytes by category, or one of them on the map",
            (*_of(MEMORY, "tiles_are_broken_down"), *_of(PAGES, "tiles_open_by_pointer_and_keys_in_both_pictures"))),
    Feature("by liveness", "Memory: bytes by liveness", _of(MEMORY, "tiles_are_broken_down")),
    Feature("with gaps and without", "Memory: including gaps, excluding gaps", _of(MEMORY, "tiles_are_broken_down")),
    Feature("a map of the tiles with a scale of colours", "Memory",
            _of(PAGES, "tiles_open_by_pointer_and_keys_in_both_pictures")),
    Feature("variables plotted over the tiles", "Memory: variables over the tiles",
            _of(MEMORY, "variables_are_plotted_over_the_tiles")),
    Feature("a tile's details, variables, addresses, vertices, compute sets and exchanges",
            "Memory: tabs of the tile that is chosen", _of(MEMORY, "a_tile_tells_all_of_itself_in_tabs")),
    Feature("what passing variables take over the steps of the program", "Liveness: the curve",
            _of(PAGES, "steps_of_liveness_move_by_slider_and_keys")),
    Feature("several steps side by side", "Liveness: keep it beside others",
            _of(MEMORY, "steps_of_liveness_stand_beside_each_other_and_lifetimes_on_the_curve")),
    Feature("the lifetime of a variable on the curve", "Liveness: choose a variable",
            _of(MEMORY, "steps_of_liveness_stand_beside_each_other_and_lifetimes_on_the_curve")),
    Feature("the call stack of a step", "Liveness: call stack",
            _of(PAGES, "an_op_shows_the_stack_of_lines_that_led_to_it")),
    Feature("the tree of programs, with search", "Program",
            _of(MEMORY, "the_tree_of_programs_opens_and_is_searched")),
    Feature("a table of ops by layer of the software with code, cycles, arithmetic and memory, whose columns are "
            "chosen and whose lines are filtered", "Operations: by op, line, module, block or kind",
            (*_of(OPERATIONS, "columns_of_operations_are_chosen"),
             *_of(PAGES, "tables_sort_both_ways_filter_and_group"))),
    Feature("charts of an op", "the dialog of an op: its cycles, cycles and bytes by tile",
            _of(OPERATIONS, "an_op_has_charts_of_its_cycles_and_its_bytes")),
    Feature("a graph of ops that opens step by step", "Graph", _of(PAGES, "the_graph_opens_from_blocks_to_ops")),
    Feature("a flame graph of each IPU", "Execution: blocks, modules and ops",
            _of(OPERATIONS, "the_flame_graph_shows_modules_and_opens_ops")),
    Feature("compute, exchange and sync of each tile, zoomed over time and over tiles", "Execution: tile by tile",
            _of(PAGES, "tiles_are_seen_step_by_step_once_it_is_zoomed")),
    Feature("cycles, their proportions, and how evenly tiles work",
            "Execution: where the cycles go, steps, the slice that is chosen",
            (*_of(PAGES, "the_time_line_zooms_and_tells_of_slices"),
             *_of(OPERATIONS, "cycles_are_told_by_category_and_steps_with_their_balance"))),
    Feature("stream copies, those of the host and of remote buffers apart", "Execution: stream copies",
            _of(OPERATIONS, "stream_copies_are_split_into_host_and_remote_buffers")),
    Feature("runs and their steps, in full or begin and end alone", "Execution: lanes",
            (*_of(OPERATIONS, "lanes_show_every_step_or_when_functions_begin_and_end"),
             *_of(PAGES, "numbers_are_those_of_the_database_and_the_summary"))),
    Feature("two reports in every view", "Compare, then every page: one, the other, or both beside each other",
            (*_of(EVERYWHERE, "every_page_shows_two_reports_beside_each_other"),
             *_of(PAGES, "two_runs_beside_each_other_show_every_change"))),
    Feature("a choice of units", "above all pages: cycles, µs or ms; B, KiB or MiB",
            _of(EVERYWHERE, "units_are_chosen_for_all_pages")),
    Feature("pictures saved as files", "below each picture: PNG, or SVG of drawings",
            _of(EVERYWHERE, "pictures_are_saved_as_files")),
    Feature("search, keys, a dark theme", "above all pages; / goes to the search",
            (*_of(EVERYWHERE, "everything_is_found_from_anywhere"),
             *_of(PAGES, "keys_alone_reach_everything", "the_theme_is_that_of_the_system_until_one_is_chosen"))),
)
OWN = (
    Feature("the line of the model behind everything", "the dialog of an op; tables",
            _of(PAGES, "an_op_opens_the_line_that_wrote_it")),
    Feature("what halves lose of each tensor", "Numerics", _of(PAGES, "tables_that_others_fill_are_shown")),
    Feature("recompilations and graph breaks, with their reasons", "Compile",
            _of(PAGES, "tables_that_others_fill_are_shown")),
    Feature("what another placement, proportion or batch would take, as the model predicts it", "What-if",
            _of(PAGES, "tables_that_others_fill_are_shown")),
    Feature("how far each number can be trusted", "a mark behind it",
            _of(EVERYWHERE, "a_number_says_how_far_it_can_be_trusted")),
    Feature("every number of two runs with its change", "Compare; `torchipu report RUN --diff RUN2`",
            (*_of(PAGES, "a_run_beside_itself_differs_in_nothing"),
             *_of(DATA, "diff_says_what_changed_and_writes_both_on_a_page"))),
    Feature("one file that needs no program and no network", "`report.html`",
            _of(PAGES, "the_page_is_one_file_whose_policy_forbids_all_else")),
    Feature("text and an exit status for runs that nobody watches", "`torchipu report --fail-if 'max_tile>95%'`",
            _of(LIMITS, "the_command_fails_where_a_limit_is_broken")),
)


def count_of(features: tuple[Feature, ...]) -> int:
    """Return how many are there."""
    return sum(one.is_present for one in features)


def page() -> str:
    """Return the page of the documentation."""
    text = _INTRODUCTION.format(
        present=count_of(POPVISION), all=len(POPVISION), own_present=count_of(OWN), own=len(OWN),
    )
    parts = (("What PopVision had", POPVISION), ("What it never had", OWN))
    return text + "\n".join(f"## {title}\n\n{_HEAD}{_rows(features)}" for title, features in parts)


def _rows(features: tuple[Feature, ...]) -> str:
    return "".join(f"| {number} | {one.what} | {one.where} | {_links(one)} |\n"
                   for number, one in enumerate(features, start=1))


def _links(feature: Feature) -> str:
    pairs = (test.split("::") for test in feature.tests)
    return ", ".join(f"[{name}](../tests/{file})" for file, name in pairs) or "not there"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
