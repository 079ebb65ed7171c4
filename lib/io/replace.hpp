// A file or folder that others see whole or not at all, whatever happens meanwhile: new, or in the place of an old one.
#pragma once

#include "io/inner_folders.hpp"
#include "io/journal.hpp"
#include "io/output.hpp"
#include "io/sibling.hpp"
#include "io/system.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::io {

/// Throws already_exists where anything stands at `target`, be it a link that leads nowhere; path_not_found where
/// there is no folder to put it in.
void require_absent(const std::filesystem::path& target);

/// What stands at the target already.
enum class Existing : std::uint8_t {
    refuse,   ///< is left as it is
    replace,  ///< is replaced when the new is complete
    merge,    ///< a folder whose files all stay: a name of the new that is taken at the commit is an error
};

/// A save that can be continued where a dead process left it.
struct Job {
    std::string id = {};  ///< as Journal has it; empty: it cannot be continued
    bool resume = false;  ///< take over what a process with the same job has left; else it is removed
    /// Of a file that is replaced: what it has to be, as Source::identity() gives it; empty: whatever it is.
    std::string replaced = {};
    /// Everything is on the disk before it counts. False leaves that to the kernel: what counts may be lost at a power
    /// failure, and only then; what a dead process has left is continued until the next boot.
    bool durable = true;
};

/// Fills a new file or folder in a hidden sibling of the target (see Sibling), which then takes its place.
///
/// A folder that is replaced keeps every file that is neither new nor named as old, and its permissions; a file that is
/// replaced gives the new one its permissions. How a folder is replaced:
/// - by exchange: the sibling beside it gets hard links to the files that stay, in folders made anew where they are in
///   folders, and the two are exchanged by one rename. At every moment the path leads to the old folder or to the new
///   one. A list says what is exchanged (see exchange_list.hpp).
/// - in place, where the folders in it cannot be made anew (see Linking), it is the root of a mount, its own folder
///   cannot be written to, or the file system has no hard links or no exchange: the sibling is in the folder, a commit
///   list says what is to be done, then it is done (see commit_list.hpp).
class Staging {
public:
    enum class Kind : std::uint8_t { file, folder };

    /// A link to a folder that is replaced is followed, a link to a file is replaced itself.
    /// Throws as require_absent does; busy; already_exists where something else has the sibling's name, or what is to
    /// be replaced is not of this kind; permission_denied.
    Staging(const std::filesystem::path& target, Kind kind, Existing existing = Existing::refuse, Job job = {});
    /// Removes what was not committed.
    ~Staging();
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    /// Whether a process that is dead has finished this file; then it is part of this save. To be asked in the order of
    /// the files, before add().
    bool adopt(const std::string& name);
    /// A file was finished, and nothing is going to be changed in it. May be called from several threads.
    void finished(const std::string& name);
    /// A folder in the folder, for files called "NAME/…". To be called before they are adopted or added. Of a folder of
    /// that name which is replaced, it becomes part: what is in it stays, but for files that are new or named as old.
    /// Throws already_exists where something else has the name.
    void add_folder(const std::string& name);
    /// A new file in the folder. For Kind::file: the file itself, whatever `name` says.
    OutputFile add(const std::string& name);
    /// The same file again, after it was closed.
    OutputFile reopen(const std::string& name) const;
    /// Where that file will be, for messages.
    std::string path_of(const std::string& name) const;

    /// Everything appears at the target and is on the disk when it returns, if the job is durable; of a folder that is
    /// replaced, the files named by `old_files` are gone then. Files must have been finished; the one added last is the
    /// one that names the others. Throws already_exists where something has come up at the target meanwhile.
    ///
    /// After an error the target is as it was, but for one case: where a folder is replaced in place, and what follows
    /// the commit list fails, the new counts, and a hint says so.
    void commit(std::span<const std::string> old_files = {});
    /// Sentences on what could not be cleared away, and on files that have another name afterwards.
    const std::vector<std::string>& notes() const noexcept { return notes_; }

private:
    struct Place {
        Place(const std::filesystem::path& target, bool follow);
        void require_absent() const;
        /// Whether something stands there.
        bool status(struct stat& found) const;

        std::string target;  ///< as messages call it
        std::string name;    ///< in its folder
        Descriptor parent;
    };
    friend void require_absent(const std::filesystem::path& target);

    /// The folder that files are created in, and a file's name in there.
    int files_folder() const noexcept { return kind_ == Kind::folder ? content_.number() : sibling_.folder(); }
    const char* name_in_folder(const std::string& name) const noexcept;

    void examine_old();
    void lock_old() const;
    void claim();
    void clear_beside(const std::string& name);
    Sibling settle(int home, const std::string& name);
    bool continue_old(const Sibling& dead);
    void remove_unfinished(int folder, const std::string& prefix) const;
    void create_content();

    void sync(int folder) const;
    void set_permissions(std::span<const std::string> old_files) const;
    void require_free() const;
    void set_permissions(const std::string& file, const struct stat& old, bool there) const;
    void set_folder_permissions() const;
    void open_to_readers() const;
    void set_final_mode() const;
    void appear();
    void appear_without_flags();
    void exchange_file();
    bool exchange_folder(std::span<const std::string> old_files);
    bool link_what_stays(std::span<const std::string> old_files);
    void unlink_what_stays();
    void sync_content() const;
    int exchange();
    std::string identity_at(int folder, const char* name) const;
    void list_exchange(std::span<const std::string> old_files) const;
    void link_latecomers(std::span<const std::string> old_files) const noexcept;
    void clear_sibling();
    bool is_only_ours() const;
    bool holds_only_ours(int folder, const std::string& prefix) const;
    void remove_journal();
    void commit_in_place(std::span<const std::string> old_files);

    Place place_;
    Kind kind_;
    bool merges_ = false;             ///< nothing of the new may be in the folder already
    bool replaces_ = false;           ///< something stands at the target
    std::optional<mode_t> old_mode_;  ///< of a file or folder there
    Descriptor old_;                  ///< a folder there, locked
    std::string old_identity_;        ///< of what is there
    std::string new_identity_;        ///< of the content, where nothing is there
    bool inside_ = false;             ///< the sibling is in that folder
    Sibling sibling_;
    Descriptor content_;  ///< in the sibling, for Kind::folder: what will be the target
    std::mutex journaling_;
    Job job_;
    Journal journal_;
    std::set<std::string, std::less<>> adoptable_;  ///< files that a dead process has finished
    std::vector<std::string> files_;
    std::vector<std::string> folders_;  ///< in the folder, for some of these files
    std::vector<std::string> notes_;
    Linked linked_;  ///< what stays, in the content already
    enum class State : std::uint8_t {
        preparing,
        appeared,   ///< the content is at the target, where nothing was
        exchanged,  ///< the content is at the target, and what was there in the sibling
        committed,
    } state_ = State::preparing;
};

}  // namespace safemap::SAFEMAP_ABI::io
