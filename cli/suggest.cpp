// Tables of words that other programs use, and the edit distance for typing errors.
#include "suggest.hpp"

#include "commands.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace safemap::cli {
namespace {

struct Meaning {
    std::string_view here;   // the words to type
    std::string_view words;  // the words of other programs, each between spaces
};

constexpr Meaning command_words[] = {
    {"inspect", " ls list info show cat view print dump tree head describe summary stat stats keys tensors open "},
    {"convert",
     " merge consolidate join cp copy save export write shard split reshard unshard cast transform extract "},
    {"verify", " check validate test lint fsck audit "},
    {"repair", " fix recover restore "},
    {"diff", " compare cmp equal "},
    {"hash", " sum checksum checksums digest sha256 sha256sum md5 md5sum xxh3 fingerprint "},
    {"scan", " find search duplicates dedupe shelf "},
    {"plan", " expect fit fits missing "},
    {"load", " upload bench benchmark "},
    {"edit", " set unset rename metadata meta annotate "},
    {"completions", " completion complete "},
    {"help", " man usage "},
};

constexpr Meaning option_words[] = {
    {"-o OUT", " --output --out --outdir --out-dir --output-dir --outfile --output-file --dest --destination --to "},
    {"--force", " --overwrite --replace --clobber --yes -y "},
    {"--dry-run", " --simulate --plan --no-act --what-if --just-print "},
    {"--quiet", " --silent -s "},
    {"--verbose", " --debug --details "},
    {"--threads", " --jobs --workers --num-workers --num-threads --parallel --nproc -j "},
    {"--json", " --format --output-format --as-json "},
    {"--dtype", " --precision --type --torch-dtype --cast --to-dtype --data-type "},
    {"--dtype f16", " --fp16 --float16 --half --f16 "},
    {"--dtype bf16", " --bf16 --bfloat16 "},
    {"--dtype f32", " --fp32 --float32 --float --full --f32 "},
    {"--dtype f8_e4m3", " --fp8 --float8 --f8 "},
    {"--max-shard-size", " --shard-size --shards --chunk-size --max-size --split-size "},
    {"--shards-for", " --ranks --world-size --tp --tensor-parallel "},
    {"--include", " --filter --only --select --match --tensors --pattern --keep "},
    {"--exclude", " --ignore --skip --omit --drop --without "},
    {"--strip-prefix", " --prefix --remove-prefix "},
    {"--root", " --key --part --path --state-dict "},
    {"--checksums", " --checksum --digest --digests --hash --hashes "},
    {"--algorithm sha256", " --sha256 --sha-256 "},
    {"--apply-scales", " --dequantize --dequantise --dequant --scales "},
    {"--resume", " --continue "},
    {"--rtol", " --tolerance --tol --epsilon "},
    {"--structure", " --values --nested "},
    {"--globals", " --imports --classes --pickle "},
    {"--strict-globals", " --safe --weights-only --weights_only "},
};

template <std::size_t N> std::string_view meant(const Meaning (&table)[N], std::string_view word) {
    if (word.empty() || word.find(' ') != word.npos) return {};
    const std::string between = ' ' + std::string(word) + ' ';
    const auto row = std::find_if(std::begin(table), std::end(table),
                                  [&](const Meaning& m) { return m.words.find(between) != m.words.npos; });
    return row == std::end(table) ? std::string_view() : row->here;
}

/// Returns the edit distance: letters to change, add, remove or swap with their neighbour.
std::size_t edits(std::string_view a, std::string_view b) {
    std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 1; i <= a.size(); ++i) {
        before = std::exchange(above, row);
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = std::min(row[j], before[j - 2] + 1);
        }
    }
    return row[b.size()];
}

}  // namespace

std::string_view command_meant(std::string_view word) {
    const std::string_view command = meant(command_words, word);
    return command == "help" || find_command(command) != nullptr ? command : std::string_view();
}

std::string_view option_meant(std::string_view option) { return meant(option_words, option); }

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
    const std::string* best = nullptr;
    const std::size_t letters = word.size() - std::min(word.find_first_not_of('-'), word.size());
    std::size_t least = std::max<std::size_t>(letters / 3, 1) + 1;
    for (const std::string& candidate : candidates) {
        const std::size_t distance = edits(word, candidate);
        if (distance >= least) continue;
        least = distance;
        best = &candidate;
    }
    return best == nullptr ? std::string() : *best;
}

}  // namespace safemap::cli
