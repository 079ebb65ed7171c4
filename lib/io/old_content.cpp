// Decides of each file in a sibling's content: it is the save's own and is deleted, or it is not and is moved.
#include "io/old_content.hpp"

#include "base/text.hpp"
#include "io/calls.hpp"
#include "io/exchange_list.hpp"
#include "io/listing.hpp"
#include "io/sibling.hpp"
#include "io/stamp.hpp"
#include "io/system.hpp"

#include <fcntl.h>
#include <linux/fs.h>

#include <optional>
#include <string_view>

namespace safemap::SAFEMAP_ABI::io {

namespace {

constexpr int most_names = 1000;
constexpr int most_rounds = 3;  // while others go on writing into an old folder

bool means_not_empty(int number) { return number == ENOTEMPTY || number == EEXIST; }

bool same_file(int folder, int other_folder, const std::string& name) {
    struct stat one = {};
    struct stat other = {};
    return calls.fstatat(folder, name.c_str(), &one, AT_SYMLINK_NOFOLLOW) == 0 &&
           calls.fstatat(other_folder, name.c_str(), &other, AT_SYMLINK_NOFOLLOW) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

/// Renames without replacing anything; gives the error number.
int move(int from, const std::string& name, int to, const std::string& new_name) {
    if (calls.renameat2(from, name.c_str(), to, new_name.c_str(), RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) return errno;
    struct stat there = {};
    if (calls.fstatat(to, new_name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0) return EEXIST;
    if (errno != ENOENT) return errno;
    return calls.renameat2(from, name.c_str(), to, new_name.c_str(), 0) == 0 ? 0 : errno;
}

class Clearing {
public:
    Clearing(int home, const std::string& name, int sibling, std::vector<std::string>& notes)
        : home_(home), name_(name), sibling_(sibling), notes_(notes) {
        const std::size_t around = std::string_view(Sibling::suffix).size() + 1;  // and the dot before it
        if (name.size() > around) target_name_ = name.substr(1, name.size() - around);
    }

    void run() {
        struct stat status = {};
        if (calls.fstatat(sibling_, Sibling::content, &status, AT_SYMLINK_NOFOLLOW) != 0) {
            if (errno == ENOENT) return;
            throw failed(Sibling::content);
        }
        // Without a list there was no exchange, and all of it was written by the save.
        list_ = ExchangeList::read(sibling_);
        if (list_ && !list_->knows_whole(status)) return set_aside();
        if (S_ISDIR(status.st_mode)) return clear_folder();
        if (calls.unlinkat(sibling_, Sibling::content, 0) != 0) throw failed(Sibling::content);
    }

private:
    Error failed(std::string_view what) const {
        return system_error(errno, "remove " + safemap::quoted(what) + " in " + safemap::quoted(name_));
    }

    void clear_folder() {
        for (int round = 0; round < most_rounds; ++round) {
            if (calls.unlinkat(sibling_, Sibling::content, AT_REMOVEDIR) == 0) return;
            if (!means_not_empty(errno)) throw failed(Sibling::content);
            const Descriptor content = open_at(sibling_, Sibling::content, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
            if (!content) throw failed(Sibling::content);
            if (list_ && !target_) target_ = open_at(home_, target_name_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
            bool all = true;
            for (const std::string& file : list_all(content.number(), name_))
                all = clear_file(content.number(), file) && all;
            if (!all) return set_aside();
        }
        errno = ENOTEMPTY;
        throw failed(Sibling::content);
    }

    /// False where a file has to stay in the content.
    bool clear_file(int content, const std::string& file) {
        if (list_) {
            const std::string stamp = stamp_in(content, file);
            const bool ours =
                list_->knows(file, stamp) || (target_ && same_file(content, target_.number(), file)) || stamp.empty();
            if (!ours) return target_ && put_back(content, file);
        }
        if (calls.unlinkat(content, file.c_str(), 0) != 0 && errno != ENOENT) throw failed(file);
        return true;
    }

    bool put_back(int content, const std::string& file) {
        const int target = target_.number();
        int number = move(content, file, target, file);
        // A hard link to what stood there before somebody replaced it.
        if (number == EEXIST && list_->stays(file, stamp_in(target, file)))
            number = calls.renameat2(content, file.c_str(), target, file.c_str(), 0) == 0 ? 0 : errno;
        if (number == EEXIST) {
            const std::optional<std::string> name = move_beside(content, file, target, file, number);
            if (name)
                notes_.push_back(safemap::quoted(file) +
                                 " was written by somebody else while it was saved, and is called " +
                                 safemap::quoted(*name) + " now");
        }
        if (number == 0 || number == ENOENT) return true;
        if (number == ENAMETOOLONG) return false;
        throw system_error(number, "put back " + safemap::quoted(file) + " from " + safemap::quoted(name_));
    }

    void set_aside() {
        int number = 0;
        const auto name = move_beside(sibling_, Sibling::content, home_, target_name_, number);
        if (!name) throw system_error(number, "move what is not of the save out of " + safemap::quoted(name_));
        notes_.push_back("what somebody else had put in the place of " + safemap::quoted(target_name_) +
                         " while it was saved is called " + safemap::quoted(*name) + " now");
    }

    /// Under the first name that is free: NAME.saved-1, NAME.saved-2, and so on.
    static std::optional<std::string> move_beside(int from, const std::string& name, int to,
                                                  const std::string& new_name, int& number) {
        for (int i = 1; i < most_names; ++i) {
            std::string candidate = new_name + ".saved-" + std::to_string(i);
            number = move(from, name, to, candidate);
            if (number == 0) return candidate;
            if (number != EEXIST) break;
        }
        return std::nullopt;
    }

    int home_;
    std::string name_;
    int sibling_;
    std::vector<std::string>& notes_;
    std::string target_name_ = {};
    std::optional<ExchangeList> list_ = {};
    Descriptor target_ = {};  ///< the folder that the content is for, or was
};

}  // namespace

void clear_content(int home, const std::string& name, int sibling, std::vector<std::string>& notes) {
    Clearing(home, name, sibling, notes).run();
}

}  // namespace safemap::SAFEMAP_ABI::io
