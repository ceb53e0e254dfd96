#include "core/quant/dequantise.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/quant/wide_vectors.hpp"
#include "tests/support/slow_quant.hpp"

namespace reshard {
namespace {

using quant::CodeFormat;
using quant::Companions;
using quant::Dequantiser;
using quant::FlatRange;
using quant::MatrixShape;
using quant::RowPart;
using quant::Scheme;
using quant::SecondScale;
using quant::Vectors;

std::span<std::byte const> range_of(std::vector<std::byte> const& bytes, FlatRange const& range,
                                    int element_bits) {
  Index const size = element_bits / 8;
  return std::span(bytes).subspan(static_cast<std::size_t>(range.begin * size),
                                  static_cast<std::size_t>((range.end - range.begin) * size));
}

std::vector<std::uint16_t> decoded_by(Dequantiser& decoder, SlowWeight const& weight,
                                      RowPart const& part) {
  quant::Needs const needs = decoder.needs_of(part);
  quant::StoredBytes stored;
  stored.codes = range_of(weight.codes, needs.code_bytes, 8);
  stored.scales = range_of(weight.scales, needs.scales, bits(weight.companions.scale));
  stored.seconds = range_of(weight.seconds, needs.seconds, bits(weight.companions.second));
  stored.zero_points = range_of(weight.zero_points, needs.zero_points,
                                bits(weight.companions.zero_points.value_or(DType::i8)));
  stored.groups = range_of(weight.groups, needs.groups, 32);
  stored.factors =
      range_of(weight.factors, needs.factors, bits(weight.companions.factors.value_or(DType::f32)));
  std::vector<std::uint16_t> result(static_cast<std::size_t>(part.rows * part.columns));
  decoder.run(part, stored, std::as_writable_bytes(std::span(result)));
  return result;
}

std::vector<std::uint16_t> decoded(Dequantiser decoder, SlowWeight const& weight,
                                   RowPart const& part) {
  return decoded_by(decoder, weight, part);
}

void expect_part(Dequantiser& decoder, SlowWeight const& weight,
                 std::vector<std::uint16_t> const& wanted, RowPart const& part) {
  std::vector<std::uint16_t> const found = decoded_by(decoder, weight, part);
  for (std::size_t i = 0; i < found.size(); ++i) {
    auto const element =
        static_cast<std::size_t>(part.first_row * weight.shape.columns + part.first_column) + i;
    ASSERT_TRUE(same_bf16(found[i], wanted[element]))
        << "rows " << part.first_row << " + " << part.rows << ", columns " << part.first_column
        << " + " << part.columns << ", element " << i << ": " << found[i] << ", not "
        << wanted[element];
  }
}

RowPart random_part(MatrixShape const& shape, std::mt19937_64& random) {
  auto const below = [&](Index end) {
    return static_cast<Index>(random() % static_cast<std::uint64_t>(end));
  };
  Index const rows = shape.stack * shape.rows;
  RowPart part{.first_row = below(rows), .rows = 1, .first_column = 0, .columns = shape.columns};
  if (random() % 2 == 0) {
    part.rows = 1 + below(rows - part.first_row);
    return part;
  }
  part.first_column = below(shape.columns);
  part.columns = 1 + below(shape.columns - part.first_column);
  return part;
}

void expect_the_slow_definition(std::vector<QuantForm> const& forms,
                                std::vector<MatrixShape> const& shapes) {
  std::mt19937_64 random(21);
  for (QuantForm const& form : forms)
    for (MatrixShape const& shape : shapes) {
      SCOPED_TRACE(testing::Message()
                   << form.name << " " << form.scheme.integer_bits << ": " << shape.stack << " x "
                   << shape.rows << " x " << shape.columns);
      Companions companions = form.companions;
      if (form.scheme.second != SecondScale::none && random() % 2 == 0)
        companions.seconds = shape.stack;
      SlowWeight const weight = random_weight(form.scheme, shape, companions, random);
      Dequantiser decoder(form.scheme, shape, companions);
      ASSERT_EQ(decoder.code_bytes(), static_cast<Index>(weight.codes.size()));
      ASSERT_EQ(shape.stack * decoder.scale_rows() * decoder.scale_columns() *
                    (bits(companions.scale) / 8),
                static_cast<Index>(weight.scales.size()));
      std::vector<std::uint16_t> const wanted = slow_elements(weight);
      expect_part(decoder, weight, wanted,
                  {.first_row = 0,
                   .rows = shape.stack * shape.rows,
                   .first_column = 0,
                   .columns = shape.columns});
      Vectors const widest = quant::widest_vectors;
      for (int i = 0; i < 60 && !testing::Test::HasFatalFailure(); ++i) {
        quant::widest_vectors = std::min(widest, static_cast<Vectors>(i % 3));
        expect_part(decoder, weight, wanted, random_part(shape, random));
      }
      quant::widest_vectors = widest;
      if (testing::Test::HasFatalFailure()) return;
    }
}

TEST(Dequantise, AgreesWithTheSlowDefinitionInEveryForm) {
  expect_the_slow_definition(
      quant_forms(), {{1, 1, 1}, {1, 7, 33}, {1, 130, 260}, {3, 5, 64}, {2, 33, 40}, {4, 1, 17}});
}

TEST(Dequantise, AgreesWhereColumnsHaveFactorsOfTheirOwn) {
  // Words and bytes hold rows of one matrix.
  expect_the_slow_definition(column_forms(), {{1, 32, 8}, {1, 96, 260}, {2, 64, 33}, {3, 32, 40}});
}

TEST(Dequantise, ATableIsThatOfItsBlockAndScale) {
  // A decoder that keeps tables sees blocks in any order, and other scales in the same places.
  std::mt19937_64 random(22);
  struct Case {
    Scheme scheme;
    MatrixShape shape;
    DType scale = DType::f32;
  };
  std::vector<Case> const cases{
      // More blocks in a row than tables are kept, of two sizes of codes.
      {{.codes = CodeFormat::e4m3, .block_rows = 300, .block_columns = 2}, {1, 301, 2052}},
      {{.codes = CodeFormat::e2m1, .block_rows = 30, .block_columns = 2}, {1, 31, 2052}},
      {{.codes = CodeFormat::e4m3, .block_rows = 32, .block_columns = 16}, {2, 40, 40}},
      {{.codes = CodeFormat::e5m2, .block_rows = 0, .block_columns = 0}, {3, 40, 40}},
      {{.codes = CodeFormat::i8, .block_rows = 1, .block_columns = 0}, {1, 3, 600}},
      {{.codes = CodeFormat::e4m3, .block_rows = 1, .block_columns = 32}, {1, 9, 70}, DType::u8}};
  for (Case const& c : cases) {
    Companions const companions{.scale = c.scale};
    Dequantiser decoder(c.scheme, c.shape, companions);
    SlowWeight const weights[] = {random_weight(c.scheme, c.shape, companions, random),
                                  random_weight(c.scheme, c.shape, companions, random)};
    std::vector<std::uint16_t> const wanted[] = {slow_elements(weights[0]),
                                                 slow_elements(weights[1])};
    for (int i = 0; i < 40 && !HasFatalFailure(); ++i)
      expect_part(decoder, weights[i % 2], wanted[i % 2], random_part(c.shape, random));
  }
}

TEST(Dequantise, EveryCodeAndAnyScaleIsThePlainArithmetic) {
  // Rows of all codes in some order; scales of all exponents, zeros, infinities and NaNs.
  struct Case {
    CodeFormat codes;
    int bits;
    DType scale;
    std::optional<DType> zero_points;
  };
  std::vector<Case> const cases{
      {CodeFormat::e4m3, 8, DType::f32, {}},       {CodeFormat::e5m2, 8, DType::f32, {}},
      {CodeFormat::i8, 8, DType::f32, {}},         {CodeFormat::i8, 8, DType::f32, DType::i8},
      {CodeFormat::i8, 8, DType::bf16, DType::i8}, {CodeFormat::i8, 8, DType::u8, DType::i8},
      {CodeFormat::i8, 8, DType::f16, {}},         {CodeFormat::integer, 8, DType::f32, {}},
      {CodeFormat::integer, 6, DType::f32, {}},    {CodeFormat::integer, 4, DType::f32, {}},
      {CodeFormat::e2m1, 4, DType::f32, {}},       {CodeFormat::e4m3, 8, DType::u8, {}}};
  std::mt19937_64 random(23);
  constexpr Index rows = 2048;
  constexpr Index columns = 300;
  for (Case const& c : cases)
    for (Index const block : {Index{256}, Index{32}, Index{300}}) {
      Scheme const scheme{
          .codes = c.codes, .integer_bits = c.bits, .block_rows = 1, .block_columns = block};
      Companions const companions{.scale = c.scale, .zero_points = c.zero_points};
      MatrixShape const shape{1, rows, columns};
      SlowWeight weight = random_weight(scheme, shape, companions, random);
      for (std::byte& byte : weight.scales) byte = static_cast<std::byte>(random());
      Dequantiser decoder(scheme, shape, companions);
      std::vector<std::uint16_t> const found = decoded_by(
          decoder, weight, {.first_row = 0, .rows = rows, .first_column = 0, .columns = columns});
      quant::StoredParts const parts{
          {}, {weight.scales.data(), 0}, {}, {weight.zero_points.data(), 0}, {}, {}};
      quant::CodeGrid const& grid = decoder.grid();
      for (Index row = 0; row < rows; ++row)
        for (Index column = 0; column < columns; ++column) {
          auto const bit = static_cast<std::size_t>(row * grid.row_bytes * 8 + column * c.bits);
          auto window = static_cast<std::uint32_t>(weight.codes[bit / 8]);
          if (bit / 8 + 1 < weight.codes.size())
            window |= static_cast<std::uint32_t>(weight.codes[bit / 8 + 1]) << 8U;
          auto const code = static_cast<std::uint8_t>(window >> bit % 8 & ((1U << c.bits) - 1));
          quant::Factors const factors =
              quant::factors_of(grid, parts, row, column, quant::scale_index(grid, row, column));
          ASSERT_EQ(found[static_cast<std::size_t>(row * columns + column)],
                    quant::dequantised(quant::value_of_code(c.codes, c.bits, code), factors))
              << "format " << static_cast<int>(c.codes) << ", " << c.bits << " bits, code "
              << int{code} << ", scale " << factors.scale << ", zero " << factors.zero;
        }
    }
}

TEST(Dequantise, AnotherSecondScaleMakesOtherTables) {
  // Two matrices have the same codes and scales.
  std::mt19937_64 random(24);
  Scheme const scheme{.codes = CodeFormat::e2m1,
                      .block_rows = 1,
                      .block_columns = 16,
                      .second = SecondScale::times};
  MatrixShape const shape{2, 8, 64};
  SlowWeight weight = random_weight(scheme, shape, {.scale = DType::f8_e4m3, .seconds = 2}, random);
  for (std::vector<std::byte>* const bytes : {&weight.codes, &weight.scales})
    std::copy_n(bytes->begin(), bytes->size() / 2,
                bytes->begin() + static_cast<std::ptrdiff_t>(bytes->size() / 2));
  std::array<float, 2> const seconds{0.25F, 3};
  std::memcpy(weight.seconds.data(), seconds.data(), sizeof seconds);
  Dequantiser decoder(scheme, shape, weight.companions);
  std::vector<std::uint16_t> const wanted = slow_elements(weight);
  for (Index const row : {0, 8, 0})
    expect_part(decoder, weight, wanted,
                {.first_row = row, .rows = 8, .first_column = 0, .columns = 64});
}

TEST(Dequantise, AWorkedExampleOfEachSecondScale) {
  // 0x53: low half 3 (1.5) is column 0, high half 5 (3) is column 1. Scale 0x40 of E4M3 is 2, the
  // second 0.25.
  Scheme scheme{.codes = CodeFormat::e2m1,
                .block_rows = 1,
                .block_columns = 16,
                .second = SecondScale::times};
  SlowWeight weight{scheme,
                    {1, 1, 2},
                    {.scale = DType::f8_e4m3},
                    {std::byte{0x53}},
                    {std::byte{0x40}},
                    std::vector<std::byte>(4),
                    {}};
  float const second = 0.25F;
  std::memcpy(weight.seconds.data(), &second, 4);
  RowPart const all{.first_row = 0, .rows = 1, .first_column = 0, .columns = 2};
  EXPECT_EQ(decoded({scheme, weight.shape, weight.companions}, weight, all),
            (std::vector<std::uint16_t>{0x3f40, 0x3fc0}));  // 0.75, 1.5
  scheme.second = SecondScale::divided_by;
  EXPECT_EQ(decoded({scheme, weight.shape, weight.companions}, weight, all),
            (std::vector<std::uint16_t>{0x4140, 0x41c0}));  // 12, 24
}

TEST(Dequantise, APackedWordHoldsEightColumnsFromItsLowestBits) {
  Scheme const scheme{
      .codes = CodeFormat::integer, .integer_bits = 4, .block_rows = 1, .block_columns = 32};
  std::vector<std::byte> const word{std::byte{0x10}, std::byte{0x32}, std::byte{0x54},
                                    std::byte{0xfe}};
  SlowWeight const weight{
      scheme, {1, 1, 8}, {.scale = DType::bf16}, word, {std::byte{0x80}, std::byte{0x3f}}, {}, {}};
  std::vector<std::uint16_t> const wanted{0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080,
                                          0xc040, 0x40c0, 0x40e0};  // -8, -7, -6, -5, -4, -3, 6, 7
  EXPECT_EQ(decoded({scheme, weight.shape, weight.companions}, weight,
                    {.first_row = 0, .rows = 1, .first_column = 0, .columns = 8}),
            wanted);
}

TEST(Dequantise, TheProductIsOneOfF32AsInTheLibraries) {
  // Searched for: products that lie so near to the middle of two BF16 values that F32 puts them on
  // it.
  std::mt19937_64 random(5);
  Scheme const scheme{.codes = CodeFormat::e4m3, .block_rows = 0, .block_columns = 0};
  int differing = 0;
  for (int i = 0; i < 2'000'000; ++i) {
    float const scale = 1 + static_cast<float>(random() % (1U << 23U)) * 0x1p-23F;
    std::uint8_t const code = static_cast<std::uint8_t>(0x38U + random() % 8);  // 1 to 1.875
    double const exact = slow_e4m3(code) * static_cast<double>(scale);
    std::uint16_t const once = slow_nearest(8, 7, static_cast<long double>(exact));
    std::uint16_t const twice =
        slow_nearest(8, 7, static_cast<long double>(static_cast<float>(exact)));
    if (once == twice) continue;
    ++differing;
    SlowWeight weight{
        scheme, {1, 1, 1}, {}, {static_cast<std::byte>(code)}, std::vector<std::byte>(4), {}, {}};
    std::memcpy(weight.scales.data(), &scale, 4);
    ASSERT_EQ(decoded({scheme, weight.shape, {}}, weight,
                      {.first_row = 0, .rows = 1, .first_column = 0, .columns = 1})[0],
              twice);
  }
  EXPECT_GE(differing, 1);
}

TEST(Dequantise, GptqCountsZeroPointsFromOne) {
  // Column 0 of eight rows: codes 0 to 7; the zero point is stored as 7, which is 8, and the group
  // of each row says which of two scales it has.
  Scheme const scheme{.codes = CodeFormat::integer,
                      .integer_bits = 4,
                      .block_rows = 4,
                      .order = quant::CodeOrder::rows,
                      .zero_offset = 1};
  SlowWeight weight{scheme,
                    {1, 8, 1},
                    {.scale = DType::bf16, .zero_points = DType::i32, .groups = true},
                    {std::byte{0x10}, std::byte{0x32}, std::byte{0x54}, std::byte{0x76}},
                    {std::byte{0x80}, std::byte{0x3f}, std::byte{0}, std::byte{0x40}},  // 1 and 2
                    {},
                    {std::byte{7}, {}, {}, {}, std::byte{7}, {}, {}, {}}};
  weight.groups.assign(32, std::byte{0});
  weight.groups[4] = std::byte{1};  // of row 1
  EXPECT_EQ(decoded({scheme, weight.shape, weight.companions}, weight,
                    {.first_row = 0, .rows = 8, .first_column = 0, .columns = 1}),
            (std::vector<std::uint16_t>{0xc100, 0xc160, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000,
                                        0xbf80}));  // -8, -14, -6, -5, -4, -3, -2, -1
}

TEST(Dequantise, NeedsNoMoreThanItsBlocks) {
  Dequantiser const block({.codes = CodeFormat::e4m3, .block_rows = 128, .block_columns = 128},
                          {1, 576, 1000}, {.scale = DType::f32});
  EXPECT_EQ(block.scale_rows(), 5);
  EXPECT_EQ(block.scale_columns(), 8);
  quant::Needs const one =
      block.needs_of({.first_row = 130, .rows = 1, .first_column = 127, .columns = 2});
  EXPECT_EQ(one.scales, (FlatRange{8, 10}));
  EXPECT_EQ(one.code_bytes, (FlatRange{130'127, 130'129}));
  quant::Needs const two =
      block.needs_of({.first_row = 383, .rows = 2, .first_column = 0, .columns = 1000});
  EXPECT_EQ(two.scales, (FlatRange{16, 32}));
  Dequantiser const packed(
      {.codes = CodeFormat::integer, .integer_bits = 4, .block_rows = 1, .block_columns = 32},
      {2, 10, 96}, {.scale = DType::bf16, .zero_points = DType::i32});
  EXPECT_EQ(packed.zero_rows(), 2);
  EXPECT_EQ(
      packed.needs_of({.first_row = 18, .rows = 1, .first_column = 33, .columns = 3}).zero_points,
      (FlatRange{10, 11}));
  EXPECT_EQ(
      packed.needs_of({.first_row = 18, .rows = 1, .first_column = 33, .columns = 3}).code_bytes,
      (FlatRange{18 * 48 + 16, 18 * 48 + 18}));
}

TEST(Dequantise, WhatIsNoFormIsNamed) {
  auto const problem = [](Scheme const& scheme, Companions const& companions) {
    return quant::problem_of(scheme, companions).value_or("");
  };
  Scheme const packed{.codes = CodeFormat::integer, .block_rows = 1, .block_columns = 32};
  EXPECT_EQ(problem(packed, {}), "");
  EXPECT_NE(problem(packed, {.scale = DType::f64}).find("F64"), std::string::npos);
  EXPECT_NE(problem(packed, {.scale = DType::i32}).find("I32"), std::string::npos);
  EXPECT_NE(problem({.codes = CodeFormat::integer, .integer_bits = 9}, {}).find("9 bits"),
            std::string::npos);
  EXPECT_NE(problem({.codes = CodeFormat::e4m3}, {.zero_points = DType::i32}), "");
  EXPECT_NE(problem({.codes = CodeFormat::e4m3}, {.zero_points = DType::u8}).find("U8"),
            std::string::npos);
  EXPECT_NE(problem({.order = quant::CodeOrder::row_pairs}, {}), "");
  EXPECT_NE(problem({.order = quant::CodeOrder::rows}, {}), "");
  EXPECT_NE(
      problem(
          {.codes = CodeFormat::integer, .integer_bits = 8, .order = quant::CodeOrder::interleaved},
          {}),
      "");
  EXPECT_NE(problem({}, {.factors = DType::u8}).find("U8"), std::string::npos);
  EXPECT_NE(
      problem({.codes = CodeFormat::e2m1, .second = SecondScale::times}, {.second = DType::u8})
          .find("U8"),
      std::string::npos);
  EXPECT_NE(problem({.block_rows = -1}, {}).find("-1"), std::string::npos);
}

TEST(Dequantise, APartThatLeavesTheStackIsOurBug) {
  Dequantiser const decoder({.block_rows = 1, .block_columns = 0}, {2, 3, 8}, {});
  for (RowPart const& part :
       std::vector<RowPart>{{6, 1, 0, 8}, {5, 2, 0, 8}, {0, 1, 4, 5}, {0, 2, 0, 4}, {0, 1, 0, 0}}) {
    try {
      static_cast<void>(decoder.needs_of(part));
      ADD_FAILURE() << "rows " << part.first_row << " + " << part.rows;
    } catch (Error const& error) {
      EXPECT_EQ(error.kind(), ErrorKind::internal);
    }
  }
}

}  // namespace
}  // namespace reshard
