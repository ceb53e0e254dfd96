#include "core/base/text/wire.hpp"

#include <limits>

#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace reshard {

enum class Colour { red, green, blue };

struct Place {
  std::string name;
  std::int64_t at = 0;
  Colour colour = Colour::red;
  friend bool operator==(Place const&, Place const&) = default;
};
static constexpr auto wire_fields(Place const&) {
  return std::tuple(&Place::name, &Place::at, WireEnum{&Place::colour, Colour::blue});
}

struct Everything {
  bool flag = false;
  std::uint32_t count = 0;
  double real = 0;
  std::vector<Place> places;
  std::optional<std::uint64_t> digest;
  std::vector<std::pair<std::string, std::string>> pairs;
  friend bool operator==(Everything const&, Everything const&) = default;
};
static constexpr auto wire_fields(Everything const&) {
  using T = Everything;
  return std::tuple(&T::flag, &T::count, &T::real, &T::places, &T::digest, &T::pairs);
}

namespace {

Everything sample() {
  return {.flag = true,
          .count = UINT32_MAX,
          .real = -0.1,
          .places = {{"a", -1, Colour::blue}, {std::string("\0\n", 2), INT64_MIN, Colour::red}},
          .digest = 0,
          .pairs = {{"key", ""}, {"", "value"}}};
}

TEST(Wire, StructsComeBackAsTheyWere) {
  std::string const bytes = WireWriter().put(sample()).bytes();
  EXPECT_EQ(WireReader(bytes, "sample").all<Everything>(), sample());
  Everything const empty;
  EXPECT_EQ(WireReader(WireWriter().put(empty).bytes(), "sample").all<Everything>(), empty);
}

TEST(Wire, SmallNumbersAreShort) {
  EXPECT_EQ(WireWriter().number(127).bytes(), "\x7f");
  EXPECT_EQ(WireWriter().number(128).bytes(), "\x80\x01");
  EXPECT_EQ(WireWriter().integer(-1).bytes(), "\x01");
  EXPECT_EQ(WireWriter().text("ab").bytes(),
            "\x02"
            "ab");
  EXPECT_EQ(WireWriter().word(1).bytes(), std::string("\1\0\0\0\0\0\0\0", 8));
}

TEST(Wire, NumbersOfAnySizeComeBack) {
  for (int bit = 0; bit < 64; ++bit)
    for (std::uint64_t const value : {1ULL << bit, (1ULL << bit) - 1, ~(1ULL << bit)}) {
      std::string const bytes =
          WireWriter().number(value).integer(static_cast<std::int64_t>(value)).word(value).bytes();
      WireReader in(bytes, "numbers");
      EXPECT_EQ(in.number(), value);
      EXPECT_EQ(in.integer(), static_cast<std::int64_t>(value));
      EXPECT_EQ(in.word(), value);
      in.finish();
    }
}

/// Cut short anywhere, or with another byte anywhere: an Error or another value, never more.
TEST(Wire, DamageIsAnErrorOrAnotherValue) {
  std::string const bytes = WireWriter().put(sample()).bytes();
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(WireReader(std::string_view(bytes).substr(0, size), "cut").all<Everything>(),
                 Error);
  for (std::size_t at = 0; at < bytes.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      try {
        auto const other = WireReader(damaged, "damaged").all<Everything>();
        EXPECT_EQ(WireWriter().put(other).bytes(), damaged) << "one value has one form";
      } catch (Error const& error) {
        EXPECT_EQ(error.kind(), ErrorKind::internal);
      }
    }
}

TEST(Wire, WhatIsLeftOverIsAnError) {
  std::string const bytes = WireWriter().put(sample()).byte(0).bytes();
  WireReader in(bytes, "the sample of rank 3");
  in.get<Everything>();
  in.check();
  try {
    in.finish();
    FAIL() << "no error";
  } catch (Error const& error) {
    EXPECT_NE(error.sentence().find("the sample of rank 3: 1 bytes"), std::string::npos)
        << error.sentence();
  }
}

TEST(Wire, NumbersHaveOneForm) {
  for (std::string const& bytes : {std::string("\x80\0", 2), std::string("\xff\x80\0", 3),
                                   std::string(9, '\xff') + "\x02", std::string(11, '\xff')}) {
    WireReader in(bytes, "a number");
    EXPECT_EQ(in.number(), 0U);
    EXPECT_FALSE(in.good());
  }
}

TEST(Wire, WhatDoesNotFitItsTypeIsRefused) {
  std::string const bytes = WireWriter().number(256).number(3).number(2).bytes();
  WireReader small(bytes, "a byte");
  EXPECT_EQ(small.get<std::uint8_t>(), 0);
  EXPECT_FALSE(small.good());
  EXPECT_EQ(WireReader(WireWriter().integer(INT64_MIN).bytes(), "an int").get<int>(), 0);
  std::string const place = WireWriter().text("a").integer(0).number(3).bytes();
  EXPECT_THROW(WireReader(place, "a colour").all<Place>(), Error) << "there is no fourth colour";
}

TEST(Wire, NoCountAsksForMoreThanThereIs) {
  std::string const bytes = WireWriter().number(1ULL << 40).raw("abc").bytes();
  EXPECT_EQ(WireReader(bytes, "a list").count(), 0U);
  std::string const words = WireWriter().word(2).word(7).word(8).bytes();
  WireReader in(words, "words");
  EXPECT_EQ(in.word_count(8), 2U);
  EXPECT_EQ(WireReader(words, "words").word_count(9), 0U) << "of nine bytes each";
}

TEST(Wire, AfterAFaultEverythingIsEmpty) {
  std::string const bytes = WireWriter().text("abc").bytes();
  WireReader in(bytes, "a text");
  in.spoil();
  EXPECT_EQ(in.text(), "");
  EXPECT_EQ(in.number(), 0U);
  EXPECT_EQ(in.word(), 0U);
  EXPECT_THROW(in.check(), Error);
}

}  // namespace
}  // namespace reshard
