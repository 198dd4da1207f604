/* What the instructions of the chain interpreter share whatever the instruction set; table/elementwise.py names them. */
#ifndef TORCHIPU_ELEMENTWISE_H
#define TORCHIPU_ELEMENTWISE_H
#include "philox.h"
#include "special_functions.h"
#include "table/elementwise.h"
#define TI_CHAIN_OPS(X) TI_VECTOR_OPS(X) TI_SCALAR_OPS(X)

enum {
#define X(name) TI_OP_##name,
  TI_CHAIN_OPS(X)
#undef X
  TI_NUM_CHAIN_OPS
};
/* Element types as ints name them. */
enum { TI_FLOAT, TI_HALF, TI_BOOL, TI_LONG, TI_INT, TI_SHORT, TI_CHAR, TI_UCHAR };
/* What a slot of a chain is; see elementwise_body.h. */
enum { TI_SLOT_DIRECT, TI_SLOT_REGISTER, TI_SLOT_CONSTANT, TI_SLOT_UNIFORM, TI_SLOT_WALK };
enum { TI_MAX_SLOTS = 256, TI_MAX_DIMS = 8, TI_SLOT_INTS = 5 + 2 * 8, TI_INSTRUCTION_INTS = 6, TI_CHAIN_HEADER = 4 };
#endif
