// A new file or folder that others see whole or not at all, whatever happens meanwhile.
#pragma once

#include "io/output.hpp"
#include "io/system.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace safemap::io {

/// Throws already_exists where anything stands at `target`, be it a link that leads nowhere; path_not_found where
/// there is no folder to put it in.
void require_absent(const std::filesystem::path& target);

/// A hidden sibling of the target, `.NAME.safemap-tmp`, that is filled and then renamed. It is held under flock for
/// as long as this object lives, so one that nobody holds is what a dead process left, and is removed. A second writer
/// finds it held and gets Errc::busy.
class Staging {
public:
    enum class Kind : std::uint8_t { file, folder };

    /// Throws as require_absent does; busy.
    Staging(const std::filesystem::path& target, Kind kind);
    /// Removes what was not committed.
    ~Staging();
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    /// A new file in the folder. For Kind::file: the file itself, whatever `name` says.
    OutputFile add(const std::string& name);
    /// The same file again, after it was closed.
    OutputFile reopen(const std::string& name) const;

    /// Everything appears at the target, by one rename, and is on the disk when it returns. Files must have been
    /// finished. Throws already_exists where something has come up at the target meanwhile.
    void commit();

private:
    struct Place {
        explicit Place(const std::filesystem::path& target);
        void require_absent() const;
        bool exists() const;

        std::string target;  ///< as messages call it
        std::string name;    ///< in its folder
        Descriptor parent;
    };
    friend void require_absent(const std::filesystem::path& target);

    OutputFile only_file() const;
    void claim();
    bool create();
    void remove_litter() const;
    bool still_there(int descriptor) const;
    void appear();
    void appear_without_flags();
    void discard() noexcept;

    Place place_;
    Kind kind_;
    std::string staged_;  ///< its name beside the target
    Descriptor held_;     ///< locked
    std::vector<std::string> files_;
    enum class State : std::uint8_t { none, staged, appeared, committed } state_ = State::none;
};

}  // namespace safemap::io
