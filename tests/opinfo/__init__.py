"""PyTorch's own OpInfo database as a judge: every sample input of every operator, compiled and compared with eager.

A sample is one (operator, element type, sample input). It is run through the backend, forward and, where the operator
supports autograd and the type is floating, backward, and compared with eager PyTorch (`judge`).

Doors: most samples go through `ipu_backend` as Dynamo would call it, which leaves out the time of Dynamo's tracing; a
fixed fraction goes through ``torch.compile(fn, backend="ipu", fullgraph=True, dynamic=False)`` (`doors`).

Which operators count for the score: those that PyTorch decomposes to the core ATen set. An operator counts when, for
each of up to four of its samples, evenly spread over the list, the forward and backward graphs that AOT autograd makes
with ``torch._decomp.core_aten_decompositions()`` hold no call but of ops tagged ``torch.Tag.core`` (`core_set`).
Nothing is listed by hand. The totals over all operators are printed beside the score.

Verdicts:
    ok: Values, element types, shapes and gradients are eager's.
    wrong: Some of them are not.
    refused: An error of torchipu's own, at compile time.
    no_type: The same, since the sample needs an element type or a layout that the IPU lacks (complex, sparse).
    error: Any other exception.
    crash, hang: The process died, or did not come back within the time limit.
    known: Not ok, and listed with a reason in ``known_differences.toml``.
    breaks: torch cannot trace the sample into one graph either, with any backend; through ``fullgraph=False`` the
        values are eager's.
    torchs: The graphs that torch traces, run by eager, differ from eager in the same sample.
    skipped: Eager PyTorch itself raises.
The score is ok / (all but breaks, torchs and skipped) over the operators that count.
"""
