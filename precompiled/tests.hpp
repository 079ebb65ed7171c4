// Headers that most tests include, compiled once for each program.
#include "library.hpp"

#include <safemap/safemap.hpp>

#include "doctest_safemap.hpp"

#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <thread>
