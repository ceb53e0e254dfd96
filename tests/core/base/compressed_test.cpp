#include "core/base/compressed.hpp"

#include <gtest/gtest.h>
#include <zlib.h>

namespace reshard {
namespace {

std::string inflated(std::string_view packed, std::size_t size) {
  std::string text(size, '\0');
  uLongf length = size;
  EXPECT_EQ(::uncompress(reinterpret_cast<Bytef*>(text.data()), &length,
                         reinterpret_cast<Bytef const*>(packed.data()), packed.size()),
            Z_OK);
  text.resize(length);
  return text;
}

TEST(Base64, AgreesWithTheExamplesOfTheStandard) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64("\xff\xfe\xfd"), "//79");
}

TEST(Deflated, GivesBackEveryText) {
  std::string noise;
  for (std::uint32_t i = 0; i < 1'000'000; ++i) noise += static_cast<char>(i * 2654435761U >> 24U);
  for (std::string const& text :
       {std::string(), std::string("a"), std::string(3'000'000, 'x'), noise})
    EXPECT_EQ(inflated(deflated(text), text.size()), text);
  EXPECT_LT(deflated(std::string(3'000'000, 'x')).size(), 5000U);
}

}  // namespace
}  // namespace reshard
