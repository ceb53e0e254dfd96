#include "core/containers/hdf5/names.hpp"

#include <array>

#include <gtest/gtest.h>

namespace reshard::hdf5 {
namespace {

TEST(Hdf5Names, LinesAreUtf8WithoutControlCharacters) {
  for (std::string_view const good :
       {"", "a b", "größe", "重み", "\xf0\x9f\xa6\x99", "\xed\x9f\xbf", "\xee\x80\x80",
        "\xf4\x8f\xbf\xbf", "\xc2\xa0"})
    EXPECT_TRUE(is_line(good)) << good;
  for (std::string_view const bad :
       {"a\n", "\t", "\x1b[0m", "\x7f", "\xc2\x80", "\xc2\x9f", "\xff", "\x80", "\xc0\xaf",
        "\xc1\xbf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
        "\xf0\x80\x80\x80", "\xe9\x87", "\xc3", "\xc3("})
    EXPECT_FALSE(is_line(bad)) << shown(bad);
  EXPECT_TRUE(is_text("a\n\tb"));
  EXPECT_FALSE(is_text(std::string_view("a\0b", 3)));
  EXPECT_FALSE(is_text("\xff"));
}

TEST(Hdf5Names, LinksComeBackAsTheirNames) {
  for (std::string_view const name :
       {"a", "a/b", "/", "//", "%", "%2F", "%25", "100%/x", "größe/重み", "a/", "..."}) {
    std::string const link = link_from_name(name);
    EXPECT_EQ(link.find('/'), std::string::npos);
    EXPECT_EQ(name_from_link(link), name);
  }
  EXPECT_EQ(link_from_name("a/b%"), "a%2Fb%25");
}

TEST(Hdf5Names, LinksThatNoNameGivesAreNone) {
  for (std::string_view const link : {"a/b", "%", "%2", "%2f", "%20", "%%", "a%2", "%2E"})
    EXPECT_EQ(name_from_link(link), std::nullopt) << link;
}

TEST(Hdf5Names, UnsafeNamesHaveAProblem) {
  for (std::string_view const bad :
       {"", ".", "..", "../a", "a/..", "a/./b", "a/../b", "a\nb", "\xff"})
    EXPECT_TRUE(name_problem(bad)) << shown(bad);
  for (std::string_view const good : {"a", "...", "a..b", ".a", "a.", "a//b", "/a", "größe"})
    EXPECT_FALSE(name_problem(good)) << good;
  EXPECT_FALSE(name_problem(std::string(largest_name_bytes, 'n')));
  EXPECT_TRUE(name_problem(std::string(largest_name_bytes + 1, 'n')));
}

TEST(Hdf5Names, MessagesShowNothingThatATerminalObeys) {
  EXPECT_EQ(shown("a\x1b[0m\xff ö"), "a\\x1b[0m\\xff ö");
  EXPECT_EQ(shown("\xc2\x85"), "\\xc2\\x85");
  EXPECT_EQ(shown("\xc3"), "\\xc3");
  EXPECT_EQ(shown(std::string(300, 'x')), std::string(200, 'x') + "…");
  std::string umlauts;
  for (int i = 0; i < 150; ++i) umlauts += "ä";
  EXPECT_TRUE(is_line(shown("x" + umlauts)));
}

}  // namespace
}  // namespace reshard::hdf5
