#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

/// Mutations that know opcodes, so that most of what they make still reaches STOP.
namespace reshard::fuzz {

/// The opcodes of a pickle with their operands; from the first byte that is none on, one piece with
/// all the rest.
std::vector<std::string> split_pickle(std::string_view pickle);

/// Deletes, repeats, moves and exchanges opcodes, and puts in names, calls, numbers and sizes that
/// parsers go wrong at.
std::string mutated_pickle(std::string_view pickle, std::minstd_rand& random);

/// LLVMFuzzerCustomMutator of a target whose input is a pickle: in one case of eight the bytes are
/// changed without looking at them.
std::size_t mutate_pickle(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed);

}  // namespace reshard::fuzz
