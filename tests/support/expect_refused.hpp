#pragma once

#include <string_view>

#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace reshard::test {

/// The work must throw an Error of this kind with these words in its sentence.
template <class Work>
void expect_refused(ErrorKind kind, std::string_view words, Work&& work) {
  try {
    work();
    ADD_FAILURE() << "not refused, expected: " << words;
  } catch (Error const& error) {
    EXPECT_EQ(exit_code(error.kind()), exit_code(kind)) << error.sentence();
    EXPECT_NE(error.sentence().find(words), std::string::npos)
        << error.sentence() << "\nexpected: " << words;
  }
}

}  // namespace reshard::test
