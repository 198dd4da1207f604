/* What the instructions of the chain interpreter share whatever the instruction set; table/elementwise.py names them. */
#ifndef TORCHIPU_ELEMENTWISE_H
#define TORCHIPU_ELEMENTWISE_H
#include "philox.h"
#include "special_functions.h"
#include "table/elementwise.h"
#include "table/reduce.h"
#define TI_CHAIN_OPS(X) TI_VECTOR_OPS(X) TI_SCALAR_OPS(X)

enum {
#define X(name) TI_OP_##name,
  TI_CHAIN_OPS(X)
#undef X
  TI_NUM_CHAIN_OPS
};
/* Element types as ints name them. A half word stays what it is in a register, as floats, bools and 64-bit integers do. */
enum { TI_FLOAT, TI_HALF, TI_BOOL, TI_LONG, TI_INT, TI_SHORT, TI_CHAR, TI_UCHAR, TI_HALFWORD, TI_BFLOAT };
#endif
