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

/// Fills a new file or folder in a hidden folder beside the target, `.NAME.safemap-tmp`, and then renames it. A lock
/// file in there is held under flock for as long as this object lives: one that nobody holds is what a dead process
/// left, and is removed; a second writer finds it held and gets Errc::busy. What has no such file in it, and is not
/// empty, is not ours and stays.
class Staging {
public:
    enum class Kind : std::uint8_t { file, folder };

    /// Throws as require_absent does; busy; already_exists where something else has the hidden folder's name.
    Staging(const std::filesystem::path& target, Kind kind);
    /// Removes what was not committed.
    ~Staging();
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    /// A new file in the folder. For Kind::file: the file itself, whatever `name` says.
    OutputFile add(const std::string& name);
    /// The same file again, after it was closed.
    OutputFile reopen(const std::string& name) const;
    /// Where that file will be, for messages.
    std::string path_of(const std::string& name) const;

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

    /// The folder that files are created in, and a file's name in there.
    int files_folder() const noexcept { return kind_ == Kind::folder ? content_.number() : sibling_.number(); }
    const char* name_in_folder(const std::string& name) const noexcept;

    void claim();
    bool create();
    void create_content();
    void remove_litter() const;
    void remove_content_of(int sibling) const;
    Error foreign() const;
    void grant_owner(int folder, const char* name);
    void grant_owner(int file) const;
    void withdraw_grants() const;
    void appear();
    void appear_without_flags();
    void remove_locked(int sibling, Descriptor& lock) const;
    void discard() noexcept;

    Place place_;
    Kind kind_;
    std::string staged_;  ///< the sibling's name beside the target
    Descriptor sibling_;
    Descriptor lock_;     ///< in the sibling
    Descriptor content_;  ///< in the sibling, for Kind::folder: what will be the target
    std::vector<std::string> files_;
    mode_t denied_ = 0;  ///< what the umask denies the owner, who has it nevertheless until the commit
    enum class State : std::uint8_t {
        none,
        made,      ///< there is a sibling, which may be another writer's by now
        owned,     ///< the sibling is ours
        appeared,  ///< the content is at the target
        committed,
    } state_ = State::none;
};

}  // namespace safemap::io
