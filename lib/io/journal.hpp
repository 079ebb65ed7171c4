// What a save has done so far, for the one that continues it.
#pragma once

namespace safemap::io {

inline constexpr const char* journal_name = "journal";
inline constexpr const char* new_journal_name = "journal.new";

}  // namespace safemap::io
