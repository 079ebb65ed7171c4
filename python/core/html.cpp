// Notebooks show a checkpoint as a table of its tensors, in which names that differ only in numbers share a row.
#include "core.hpp"

#include <safemap/advanced/fold.hpp>
#include <safemap/advanced/text.hpp>

#include <algorithm>

namespace safemap::python {
namespace {

constexpr std::size_t most_rows = 200;
constexpr std::size_t most_notes = 20;

std::string escaped(std::string_view text) {
    std::string html;
    for (const char c : printable(text, 300)) {
        if (c == '&') html += "&amp;";
        else if (c == '<') html += "&lt;";
        else if (c == '>') html += "&gt;";
        else if (c == '"') html += "&quot;";
        else if (c == '\'') html += "&#39;";
        else html += c;
    }
    return html;
}

/// Returns "1.23 GB".
std::string size_text(std::uint64_t bytes) {
    constexpr const char* units[] = {" B", " kB", " MB", " GB", " TB", " PB", " EB"};
    double value = static_cast<double>(bytes);
    std::size_t unit = 0;
    for (; value >= 1000 && unit + 1 < std::size(units); ++unit) value /= 1000;
    char text[32];
    std::snprintf(text, sizeof text, unit == 0 ? "%.0f%s" : "%.3g%s", value, units[unit]);
    return text;
}

std::string row_of(const Folded& group) {
    const std::string count = group.count > 1 ? " &times; " + std::to_string(group.count) : "";
    return "<tr><td style=\"text-align:left\"><code>" + escaped(group.name()) + "</code>" + count + "</td><td>" +
           escaped(group.kind) + "</td><td>" + size_text(group.bytes) + "</td></tr>";
}

}  // namespace

std::string html_of(const Checkpoint& checkpoint) {
    const std::vector<Folded> groups = fold(checkpoint.size(), [&](std::size_t i) {
        const LazyTensor& tensor = checkpoint.tensor(i);
        return Foldable{.name = tensor.name(),
                        .kind = std::string(name(tensor.dtype())) + ' ' + to_string(tensor.shape()),
                        .bytes = tensor.nbytes()};
    });
    std::string html = "<p>safemap.Checkpoint, " + escaped(name(checkpoint.format())) + ": " +
                       std::to_string(checkpoint.size()) + (checkpoint.size() == 1 ? " tensor, " : " tensors, ") +
                       size_text(checkpoint.total_bytes()) +
                       "</p><table><tr><th>name</th><th>tensor</th><th>size</th></tr>";
    for (std::size_t i = 0; i < std::min(groups.size(), most_rows); ++i) html += row_of(groups[i]);
    html += "</table>";
    if (groups.size() > most_rows) html += "<p>and " + std::to_string(groups.size() - most_rows) + " other rows</p>";
    const std::vector<std::string>& notes = checkpoint.notes();
    for (std::size_t i = 0; i < std::min(notes.size(), most_notes); ++i)
        html += "<p>note: " + escaped(notes[i]) + "</p>";
    return html;
}

}  // namespace safemap::python
