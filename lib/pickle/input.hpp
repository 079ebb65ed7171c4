// Reads the bytes of a pickle as opcodes take them: numbers, counted bytes, lines and frames. Errors say at which byte.
#pragma once

#include <safemap/error.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// A cursor over the bytes of one pickle.
class PickleInput {
public:
    /// Reads from `bytes`; `follows` is PickleLimits::follows.
    PickleInput(std::string_view bytes, std::optional<std::uint64_t> follows) : bytes_(bytes), follows_(follows) {}

    std::size_t size() const noexcept { return bytes_.size(); }
    /// Returns the number of bytes that have been taken.
    std::size_t at() const noexcept { return at_; }
    Error fault(Errc code, const std::string& what) const {
        return {code, "byte " + std::to_string(at_) + " of the pickle: " + what};
    }

    /// Throws a fault. It is out of line, so that an opcode takes a few instructions if nothing is wrong.
    [[noreturn]] void refuse(Errc code, const char* what) const;

    /// Takes a little-endian number.
    template <class T> T number() {
        if (bytes_.size() - at_ < sizeof(T)) refuse(Errc::pickle_truncated, "the pickle ends before STOP");
        T value;
        std::memcpy(&value, bytes_.data() + at_, sizeof(T));
        at_ += sizeof(T);
        return value;
    }
    /// Returns all bytes that have not been taken.
    std::string_view rest() const noexcept { return bytes_.substr(at_); }
    /// Takes bytes, which must be there.
    void skip(std::size_t bytes) noexcept { at_ += bytes; }
    /// Takes a count, and the bytes after it.
    template <std::integral Count> std::string_view counted() {
        const Count count = number<Count>();
        if (count < Count{0}) throw fault(Errc::pickle_bad_count, "negative length " + std::to_string(count));
        return take(static_cast<std::uint64_t>(count));
    }
    /// Takes a line, and returns it without its end.
    std::string_view line();
    std::string_view utf8_line();
    std::uint64_t memo_line();

    /// Takes the size of a frame, which begins after it. Frames only say how much to read ahead; picklers end each
    /// frame before the next begins.
    void begin_frame();
    bool in_frame() const noexcept { return at_ < frame_end_; }
    /// Throws if an opcode that began in a frame has taken bytes after the end of the frame. Python's readers drop the
    /// rest of the frame, go on after it, or refuse the pickle, so each would run another pickle.
    void end_opcode(bool in_frame) const {
        if (in_frame && at_ > frame_end_) throw bad_frame("the argument of an opcode crosses the end of its frame");
    }
    Error bad_frame(const std::string& what) const { return fault(Errc::pickle_bad_count, what); }

private:
    std::string_view take(std::uint64_t count) {
        if (count > bytes_.size() - at_) throw beyond(count);
        const std::string_view taken(bytes_.data() + at_, count);
        at_ += count;
        return taken;
    }
    Error beyond(std::uint64_t count) const;

    std::string_view bytes_;
    std::optional<std::uint64_t> follows_;
    std::size_t at_ = 0;
    std::size_t frame_end_ = 0;
};

}  // namespace safemap::SAFEMAP_ABI
