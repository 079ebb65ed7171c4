// Verdicts and findings, as text and as JSON.
#pragma once

#include "output.hpp"

#include <safemap/verdict.hpp>

#include <string>

namespace safemap::cli {

/// Writes the members "verdict" and "findings".
void write_findings(JsonWriter& json, const Findings& findings);

/// Returns "ok", or the verdict and the number of its findings: "runs code: 2".
std::string verdict_text(const Findings& findings);

/// Returns a line for each finding that is worse than harmless classes, and one line for these; empty without findings.
std::string finding_lines(const Findings& findings);

/// Returns a line that warns of a file that runs code, in red if stdout is a terminal with colours; else empty.
std::string warning_of_code(const Findings& findings);

}  // namespace safemap::cli
