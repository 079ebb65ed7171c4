// Tests splitting indices into chunks, with sizes up to the largest number.
#include "base/chunks.hpp"

#include "doctest_safemap.hpp"

#include <limits>

namespace chunks_test {

using namespace safemap;

TEST_CASE("indices are split as by torch.chunk") {
    const auto check = [](std::uint64_t number, std::uint64_t count, std::uint64_t size, std::uint64_t first,
                          std::uint64_t last) {
        CAPTURE(number);
        CAPTURE(size);
        CHECK(chunk_start(size, count, number) == first);
        CHECK(chunk_start(size, count, number + 1) == last);
    };
    // torch.arange(10).chunk(4): 3, 3, 3, 1
    check(0, 4, 10, 0, 3);
    check(2, 4, 10, 6, 9);
    check(3, 4, 10, 9, 10);
    // torch.arange(5).chunk(4): 2, 2, 1, and no fourth chunk
    check(2, 4, 5, 4, 5);
    check(3, 4, 5, 5, 5);
    check(7, 8, 2, 2, 2);
    check(0, 3, 0, 0, 0);
    constexpr auto most = std::numeric_limits<std::uint64_t>::max();
    check(most - 1, most, 3, 3, 3);
    check(0, most, most, 0, 1);
    check(1, 2, most, most / 2 + 1, most);
}

}  // namespace chunks_test
