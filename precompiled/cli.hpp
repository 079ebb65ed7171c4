// Headers that most files of the command line include, compiled once.
#include "library.hpp"

#include <safemap/safemap.hpp>

#include <CLI/App.hpp>
#include <fmt/core.h>
