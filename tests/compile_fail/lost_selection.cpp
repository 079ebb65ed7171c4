// Must not compile: a part of a checkpoint is another checkpoint.
#include <safemap/checkpoint.hpp>

void drop_biases(safemap::Checkpoint& checkpoint) {
#ifdef MUST_NOT_COMPILE
    checkpoint.select(safemap::Selection().exclude("*.bias"));
#else
    checkpoint = checkpoint.select(safemap::Selection().exclude("*.bias"));
#endif
}
