// Reads numbers, lines and frames from the bytes of a pickle. Tested by tests/pickle/pickle_test.cpp.
#include "pickle/input.hpp"

#include "base/text.hpp"
#include "pickle/literals.hpp"

namespace safemap::SAFEMAP_ABI {

void PickleInput::refuse(Errc code, const char* what) const { throw fault(code, what); }

/// Returns the error for an argument that needs more bytes than are left.
Error PickleInput::beyond(std::uint64_t count) const {
    const std::uint64_t left = bytes_.size() - at_;
    Errc code = Errc::pickle_bad_count;
    if (follows_) code = count - left <= *follows_ ? Errc::pickle_truncated : Errc::file_truncated;
    return fault(code, "expected " + bytes_text(count) + ", found " + bytes_text(left + follows_.value_or(0)));
}

std::string_view PickleInput::line() {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == bytes_.npos) throw fault(Errc::pickle_truncated, "a line does not end");
    const std::string_view taken = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return taken;
}

std::string_view PickleInput::utf8_line() {
    const std::string_view taken = line();
    if (!is_utf8(taken)) throw Error(Errc::pickle_bad_text, "a name that is not UTF-8: " + safemap::quoted(taken));
    return taken;
}

std::uint64_t PickleInput::memo_line() {
    const std::string_view digits = line();
    if (const auto value = number_in<std::uint64_t>(digits)) return *value;
    throw fault(Errc::pickle_bad_memo, "invalid memo entry " + safemap::quoted(digits));
}

void PickleInput::begin_frame() {
    const bool framed = at_ <= frame_end_;
    const auto size = number<std::uint64_t>();
    if (framed) throw bad_frame("a frame inside a frame");
    if (size > bytes_.size() - at_) throw beyond(size);
    frame_end_ = at_ + size;
}

}  // namespace safemap::SAFEMAP_ABI
