# cython: language_level=3
"""Kernels that draw random values; see random_body.h."""

from libc.stdint cimport uint32_t

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "random.h" nogil:
    void ti_philox(const uint32_t *counter, const uint32_t *key, uint32_t *out)
    ti_kernel select_random_words()
    ti_kernel select_random_dropout()
    ti_kernel select_random_bernoulli()
    ti_kernel select_random_uniform()
    ti_kernel select_random_normal()
    ti_kernel select_random_integers()
    ti_kernel select_random_exponential()
    ti_kernel select_random_permutation()
    ti_kernel select_random_choice()

RANDOM_WORDS = make_kernel("random_words", select_random_words())
RANDOM_DROPOUT = make_kernel("random_dropout", select_random_dropout())
RANDOM_BERNOULLI = make_kernel("random_bernoulli", select_random_bernoulli())
RANDOM_UNIFORM = make_kernel("random_uniform", select_random_uniform())
RANDOM_NORMAL = make_kernel("random_normal", select_random_normal())
RANDOM_INTEGERS = make_kernel("random_integers", select_random_integers())
RANDOM_EXPONENTIAL = make_kernel("random_exponential", select_random_exponential())
RANDOM_PERMUTATION = make_kernel("random_permutation", select_random_permutation())
RANDOM_CHOICE = make_kernel("random_choice", select_random_choice())


def philox(counter, key):
    """Return the four words of one Philox-4x32-10 block, for tests against published answers."""
    cdef uint32_t c[4]
    cdef uint32_t k[2]
    cdef uint32_t out[4]
    for i in range(4):
        c[i] = counter[i]
    for i in range(2):
        k[i] = key[i]
    ti_philox(c, k, out)
    return tuple(out[i] for i in range(4))
