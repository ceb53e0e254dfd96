#include "core/base/text/json.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/base/text/text.hpp"

namespace reshard {
namespace {

TEST(Json, RealNumbersAreReadAsRealNumbersAgain) {
  for (double const value :
       {0.0, -0.0, 5.0, -3.0, 0.5, 1e-7, 999999999999999.0, 1e15, 9007199254740992.0,
        -4503599627370496.0, 1e16, 1e22, 1.5e300, 5e-324}) {
    Json const again = parse_json(Json(value).dump(), "test");
    ASSERT_NE(again.real(), nullptr) << Json(value).dump();
    EXPECT_EQ(*again.real(), value);
  }
}

TEST(Json, IntegersAreReadAsIntegersAgain) {
  for (std::int64_t const value :
       {std::int64_t{0}, std::int64_t{1'000'000'000'000'000}, INT64_MAX, INT64_MIN}) {
    Json const again = parse_json(Json(value).dump(), "test");
    ASSERT_NE(again.integer(), nullptr) << Json(value).dump();
    EXPECT_EQ(*again.integer(), value);
  }
}

TEST(Json, NumbersBeyond64BitsAreNamedAsSuch) {
  for (std::string const text : {"[1e999]", "[1000000000000000019884624838656]"}) {
    try {
      (void)parse_json(text, "config.json");
      ADD_FAILURE() << text;
    } catch (Error const& error) {
      EXPECT_NE(std::string(error.what()).find("64 bits"), std::string::npos) << error.what();
    }
  }
}

TEST(Text, ControlCharactersAreEscaped) {
  EXPECT_EQ(without_controls("a\nwarning: \x1b[31mb\x7f"), "a\\u000awarning: \\u001b[31mb\\u007f");
  EXPECT_EQ(without_controls("a\n\tb\x1b", "\n\t"), "a\n\tb\\u001b");
  EXPECT_EQ(without_controls("größe"), "größe");
}

}  // namespace
}  // namespace reshard
