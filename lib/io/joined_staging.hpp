// The files of a Staging that another process has made, on this machine or another, for processes that write into them
// together.
#pragma once

#include "io/output.hpp"
#include "io/replace.hpp"
#include "io/system.hpp"

#include <filesystem>
#include <string>

namespace safemap::SAFEMAP_ABI::io {

// Name of the file in a sibling that shows other processes that they see the same sibling.
inline constexpr const char* token_name = "token";
inline constexpr const char* new_token_name = "token.new";

/// Returns a text that no other call returns, in any process.
std::string new_token();
/// Puts the token into the open `sibling`.
void put_token(int sibling, const std::string& token, bool durable);

/// The sibling of a target that another process fills. Holds the folder of the files open, so that files of another
/// save that comes later are never written to.
class JoinedStaging {
public:
    /// Finds the sibling of `target` and compares its token. `key` is what Staging::open_to_others() returned in the
    /// other process. Network file systems may show a new file late, so it looks for a few seconds. Throws
    /// invalid_argument if the target is not the one of the other process, and what opening throws.
    JoinedStaging(const std::filesystem::path& target, Staging::Kind kind, Existing existing, const std::string& key,
                  bool durable);

    /// Opens a file that the other process has added.
    OutputFile reopen(const std::string& name) const;
    /// Returns the final path of the file, for messages.
    std::string path_of(const std::string& name) const;

private:
    std::string target_;
    Staging::Kind kind_;
    bool durable_;
    Descriptor folder_;  // with the files
};

}  // namespace safemap::SAFEMAP_ABI::io
