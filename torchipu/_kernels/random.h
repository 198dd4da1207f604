/* Random values for both instruction sets. */
#ifndef TORCHIPU_RANDOM_H
#define TORCHIPU_RANDOM_H
#include "isa.h"
#include "philox.h"
#define TI_BODY "random_body.h"
#include "isa_build.h"
TI_SELECT(random_words)
TI_SELECT(random_dropout)
TI_SELECT(random_bernoulli)
TI_SELECT(random_uniform)
TI_SELECT(random_normal)
TI_SELECT(random_integers)
TI_SELECT(random_exponential)
TI_SELECT(random_permutation)
TI_SELECT(random_choice)
#endif
