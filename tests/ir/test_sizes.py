"""Sizes that are known later: what is computed from them, what was decided by them, and graphs that hold them."""

from typing import NamedTuple

import pytest

from torchipu.ir.formulas import OPERATIONS
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.settling import Settling
from torchipu.ir.size import Size
from torchipu.ir.sizes import Sizes, flag_of, largest, least, may_be_same, of_numbers, settled
from torchipu.ir.types import DType

FORMULAS = {
    "sums": lambda a, b: (a + b + 3, 3 + a, a + 0, 0 + b),
    "differences": lambda a, b: (a - b, 7 - a, a - 0, -b, a - a),
    "products": lambda a, b: (a * b * 2, 2 * a, a * 1, 0 * a, b * 0),
    "quotients": lambda a, b: (a // b, 100 // a, a // 1, -(-a // 4), (a + b) % 3, 100 % b, a % 1),
    "larger ones": lambda a, b: (max(a, b), min(a, 5), max(1, b)),
    "decisions": lambda a, b: (a if a > b else b, 1 if a == 1 else a, "even" if a % 2 == 0 else "odd", a >= 4, a != b),
    "plain numbers": lambda a, b: (list(range(a)), float(b), a / b, [0] * int(b), 2**a),
}


@pytest.mark.parametrize("formula", FORMULAS.values(), ids=FORMULAS)
def test_where_guards_hold_numbers_are_those_of_ints(formula):
    held = 0
    for a, b in ((4, 3), (8, 8), (1, 2)):
        sizes = Sizes(["a", "b"], [a, b])
        with sizes.watched() as guards:
            made = formula(*sizes.given)
        for x in range(1, 10):
            for y in range(1, 10):
                numbers = sizes.numbers([x, y])
                if guards.hold(numbers):
                    held += 1
                    assert settled(made, numbers) == formula(x, y)
        assert guards.hold(sizes.numbers([a, b]))
    assert held >= 3


def test_what_decides_nothing_has_no_guards():
    sizes = Sizes(["n"], [4])
    (n,) = sizes.given
    with sizes.watched() as guards:
        shape = (n, n * 2, n + 0)
        assert shape[2] is n
        assert (n, 3) == (n, 3)
    assert guards.found == {}
    assert settled(shape, sizes.numbers([9])) == (9, 18, 9)


def test_what_is_one_number_at_any_size_is_a_plain_one():
    (n,) = Sizes(["n"], [4]).given
    assert [(type(number), number) for number in (n * 0, 0 * n, n % 1, n - n)] == [(int, 0)] * 4
    for undefined in (lambda: n // 0, lambda: n % 0):
        with pytest.raises(ZeroDivisionError):
            undefined()


def test_a_quotient_by_a_size_that_may_be_zero_is_guarded():
    sizes = Sizes(["n"], [4])
    with sizes.watched() as guards:
        quotient = 12 // sizes.given[0]
    assert settled(quotient, sizes.numbers([3])) == 4
    assert not guards.hold(sizes.numbers([0]))


def test_a_quotient_by_a_size_that_nobody_has_set_is_known_later():
    sizes = Sizes(["n"], [0])
    with sizes.watched() as guards:
        quotient, rest = 12 // sizes.given[0], 13 % sizes.given[0]
    assert not guards.hold(sizes.numbers([4]))
    assert settled((quotient, rest), sizes.numbers([4])) == (3, 1)


def test_real_numbers_are_computed_of_sizes_and_guarded_where_they_decide():
    sizes = Sizes(["a", "b"], [0, 0])
    a, b = sizes.given
    with sizes.watched() as guards:
        share = sizes.computed("/", a, b)
        root = sizes.computed("power", sizes.computed("+", a, 1), -0.5)
        rest = sizes.computed("power", b, -1.0)
        factors = (sizes.computed("*", share, 2.5), root, rest)
    for x, y in ((3, 4), (8, 5)):
        numbers = sizes.numbers([x, y])
        assert settled(factors, numbers) == (x / y * 2.5, (x + 1) ** -0.5, 1 / y)
        assert not guards.hold(numbers)  # with the first sizes there was no quotient
    sizes.set([3, 4])
    with sizes.watched() as guards:
        assert float(share) == 0.75
        assert share < 1.0
    assert guards.hold(sizes.numbers([6, 8]))
    assert not guards.hold(sizes.numbers([6, 9]))
    with pytest.raises(TypeError):
        range(share)


def test_a_quotient_that_is_known_is_guarded_for_all_who_watch():
    sizes = Sizes(["n"], [4])
    first = 12 // sizes.given[0]
    with sizes.watched() as guards:
        assert 12 // sizes.given[0] is first
    assert not guards.hold(sizes.numbers([0]))
    assert guards.hold(sizes.numbers([3]))


def test_formulas_that_are_equal_are_one_number_and_others_are_other_keys():
    n, m = Sizes(["n", "m"], [4, 4]).given
    assert n * 2 is 2 * n
    assert len({n: 0, m: 1, n * 1: 2}) == 2
    assert repr((n + 1) * m) == "((n + 1) * m)"


class Cut(NamedTuple):
    blocks: int
    block: int


@of_numbers
def cut(rows, *, most=8):
    blocks = 1 if rows <= most else -(-rows // most)
    return Cut(blocks, -(-rows // blocks))


@of_numbers
def per_row(total, rows):
    return total // rows


def test_what_a_function_of_numbers_decides_is_no_guard_but_part_of_its_results():
    sizes = Sizes(["n"], [20])
    (n,) = sizes.given
    with sizes.watched() as guards:
        found = cut(n, most=8)
        assert cut(n).blocks is found.blocks
        assert type(found) is Cut
        assert (found.block.now, cut(20), cut(n, most=32).blocks.now) == (7, Cut(3, 7), 1)
    assert not guards.found
    numbers = sizes.numbers([5])
    assert settled(tuple(found), numbers) == cut(5) == Cut(1, 5)
    assert settled(tuple(found), sizes.numbers([0])) == (1, 0)
    assert repr(found.block) == "cut(n, 8)[1]"
    with sizes.watched() as guards:
        assert found.blocks > 1
    assert guards.hold(sizes.numbers([9]))
    assert not guards.hold(sizes.numbers([8]))


def test_a_function_of_numbers_gives_zero_where_sizes_make_it_divide_by_zero():
    sizes = Sizes(["n"], [4])
    quotient = per_row(12, sizes.given[0])
    assert settled(quotient, sizes.numbers([3])) == 4
    assert settled(quotient, sizes.numbers([0])) == 0


def test_guards_hold_where_each_decision_goes_the_same_way():
    sizes = Sizes(["n", "m"], [4, 6])
    n, m = sizes.given
    with sizes.watched() as guards:
        assert n < m
        assert n + m == 10
        assert not n * 3 <= m
        assert n > 2
    assert guards.hold(sizes.numbers([3, 7]))
    assert not guards.hold(sizes.numbers([3, 8]))
    assert not guards.hold(sizes.numbers([2, 8]))
    assert not guards.hold(sizes.numbers([6, 4]))
    assert not guards.hold(sizes.numbers([2, 5]))


@pytest.mark.whole
@pytest.mark.parametrize("asked", [
    lambda n: n + 3, lambda n: n - 3, lambda n: n * 3, lambda n: n // 3, lambda n: n == 3, lambda n: n != 3,
    lambda n: n < 3, lambda n: n <= 3, lambda n: n > 3, lambda n: n >= 3,
], ids=["+", "-", "*", "//", "==", "!=", "<", "<=", ">", ">="])
def test_what_is_known_of_a_size_and_a_number_is_looked_up_at_once(asked, monkeypatch):
    """It is asked thousands of times while a graph is planned."""
    sizes, went = Sizes(["n"], [4]), []
    first = asked(sizes.given[0])
    for name in ("computed", "decided"):
        monkeypatch.setattr(sizes, name, lambda *given: went.append(given), raising=True)
    assert all(asked(sizes.given[0]) is first for _ in range(5))
    assert went == []


def test_numbers_can_be_set_anew():
    sizes = Sizes(["n"], [4])
    (n,) = sizes.given
    twice = n * 2
    sizes.set([5])
    assert twice == 10
    assert twice > n


def test_a_settled_graph_keeps_what_has_no_sizes():
    sizes = Sizes(["n"], [4])
    (n,) = sizes.given
    weight, x, y = Tensor("w", (3,), DType.FLOAT), Tensor("x", (n, 3), DType.FLOAT), Tensor("y", (n, 3), DType.FLOAT)
    add = Op("add", (x, weight), (y,), {"sizes": [n, 3], "alpha": 1}, "aten.add.Tensor")
    double = Op("add", (weight, weight), (Tensor("z", (3,), DType.FLOAT),), {}, "aten.add.Tensor")
    graph = Settling(sizes.numbers([7])).graph(Graph("g", (weight, x), (y,), (double, add)))
    assert graph.inputs[0] is weight
    assert graph.ops[0] is double
    assert graph.ops[1].attrs == {"sizes": [7, 3], "alpha": 1}
    assert [tensor.shape for tensor in (*graph.inputs, *graph.outputs)] == [(3,), (7, 3), (7, 3)]
    assert graph.outputs[0] is graph.ops[1].outputs[0]
    assert not any(isinstance(size, Size) for tensor in graph.inputs for size in tensor.shape)


def test_quotients_and_rounded_ones_are_formulas_that_decide_nothing():
    sizes = Sizes(["a", "b"], [7, 2])
    a, b = sizes.given
    with sizes.watched() as guards:
        made = [a / b, 3 / b, round(a / b), largest(a, b), least(3, a), largest(1, round(2.5 * a / b))]
    assert not [text for text in guards.found if "==" in text and "0" not in text]
    for values in ((7, 2), (9, 4), (1, 8)):
        numbers = sizes.numbers(values)
        x, y = values
        expected = [x / y, 3 / y, round(x / y), max(x, y), min(3, x), max(1, round(2.5 * x / y))]
        assert [settled(one, numbers) for one in made] == expected
        assert guards.hold(numbers)


def test_divmod_and_the_absolute_value_of_sizes():
    sizes = Sizes(["a"], [7])
    (a,) = sizes.given
    with sizes.watched() as guards:
        whole, rest = divmod(a, 4)
        far = abs(3 - a)
    numbers = sizes.numbers([9])
    assert guards.hold(numbers)
    assert settled([whole, rest, far], numbers) == [2, 1, 6]
    assert not guards.hold(sizes.numbers([2]))  # 3 - 2 is not below 0


def test_a_distance_of_sizes_that_are_the_same_is_that_of_any_others():
    sizes = Sizes(["a", "b"], [4, 3])
    a, b = sizes.given
    with sizes.watched() as guards:
        far = abs(a - b)
    for x, y, holds in ((9, 2, True), (5, 5, True), (2, 9, False)):
        numbers = sizes.numbers([x, y])
        assert guards.hold(numbers) is holds
        assert settled(far, numbers) == abs(x - y) or not holds


@pytest.mark.whole
@pytest.mark.parametrize("operation", ["+", "-", "*", "//", "%", "max", "min", "/"])
@pytest.mark.parametrize("number", [-1, 0, 1, 2, 5])
def test_operations_with_a_number_on_either_side_are_those_of_ints(operation, number):
    """As a graph names them: nobody has asked the number itself for the operation before."""
    sizes = Sizes(["a"], [3])
    (a,) = sizes.given
    for turned in (False, True):
        if operation in ("//", "%", "/") and number == 0 and not turned:
            continue
        with sizes.watched() as guards:
            made = sizes.computed(operation, *((number, a) if turned else (a, number)))
        for x in (3, 1, 2, 7):
            numbers = sizes.numbers([x])
            assert guards.hold(numbers)
            assert settled(made, numbers) == OPERATIONS[operation](*((number, x) if turned else (x, number)))


def test_a_list_is_repeated_by_a_size_that_is_then_this_one():
    sizes = Sizes(["a"], [3])
    (a,) = sizes.given
    with sizes.watched() as guards:
        assert [0] * a == [0, 0, 0]
    assert guards.hold([3])
    assert not guards.hold([4])


def test_numbers_made_whole_are_formulas():
    sizes = Sizes(["a"], [7])
    (a,) = sizes.given
    with sizes.watched() as guards:
        made = [sizes.computed(name, a * -0.6, 1) for name in ("truncated", "floor", "ceiling", "rounded")]
    assert settled(made, sizes.numbers([7])) == [-4, -5, -4, -4]
    assert settled(made, sizes.numbers([6])) == [-3, -4, -3, -4]
    assert guards.found == {}


def test_numbers_that_happen_to_be_equal_are_told_from_the_same_ones_without_a_decision():
    sizes = Sizes(["batch", "length"], [2, 64])
    batch, length = sizes.given
    gap = sizes.apart(0)
    with sizes.watched() as guards:
        assert may_be_same(batch * length, length * batch)
        assert may_be_same((batch, (length + 1) * 3), (batch, 3 + length * 3))
        assert not may_be_same(batch * length, 128)
        assert not may_be_same((batch, length), (batch, 64))
        assert not may_be_same((2, length), (batch, length))
        assert not may_be_same((batch, length), (batch, length, length))
        assert not may_be_same(batch, length)
        assert not may_be_same(gap, length)
        assert may_be_same(gap * 2, gap + gap)
        # A part of a table may be all of it, whatever the length is now.
        assert may_be_same(least(length, 512), 512)
        assert may_be_same(least(length, 512), length)
        # What has one element is repeated: that is asked.
        assert may_be_same((batch, length), (batch, 1))
        assert may_be_same((2, 3), [2, 3])
        assert not may_be_same((2, 3), (3, 2))
    assert not guards.found


def test_a_flag_is_a_number_where_sizes_nearby_decide_otherwise_and_else_a_bool_that_is_decided():
    sizes = Sizes(["batch", "length"], [2, 20])
    batch, length = sizes.given
    has_few = of_numbers(lambda rows: rows <= 16)
    with sizes.watched() as guards:
        flag = flag_of(has_few(batch * length))
        assert isinstance(flag, Size)
        assert flag_of(True) is True
        assert flag_of(0) is False
    assert not guards.found
    assert [settled(flag, sizes.numbers([2, rows])) for rows in (8, 9)] == [True, False]
    gap = sizes.apart(0)
    with sizes.watched() as guards:
        assert flag_of(has_few(length * 100_000)) is False
        assert flag_of(has_few(gap + 1)) is True  # what lies apart in this call does so nearby
    assert len(guards.found) == 2
    assert guards.hold(sizes.numbers([3, 50], [4]))
    assert not guards.hold(sizes.numbers([3, 50], [16]))


def test_numbers_noted_after_sizes_elsewhere_were_asked_for_are_there_too():
    sizes = Sizes(["a", "b"], [6, 20])
    a, b = sizes.given
    parts = of_numbers(lambda count: (count // 7, 1 // (count - 226)))
    for _ in range(2):
        whole, zero = parts(a * 2)
        gap = sizes.apart(0)
        made = [a + b, b % a, largest(a, b), whole, zero, gap * 3, a // (b - 115)]
        for given, numbers in zip(((113, 115), (100_003, 100_005)), sizes.elsewhere(), strict=True):
            expected = sizes.numbers(given, [given[0] - 2])
            assert numbers == expected
            assert [numbers[one.place] for one in made] == settled(made, expected)
        a, b = a + 1, b + 1
    assert all(len(numbers) == len(sizes.now) for numbers in sizes.nearby())
