#include <gtest/gtest.h>

#include "core/layout/pipeline_chunks.hpp"
#include "tests/core/layout/model.hpp"

namespace reshard::test {
namespace {

std::vector<Index> decoder_sizes(PipelineSpec const& spec) {
  std::vector<Index> sizes;
  for (PipelineChunk const& chunk : pipeline_chunks(spec)) sizes.push_back(extent(chunk.decoder));
  return sizes;
}

std::string refusal(PipelineSpec const& spec) {
  return sentence_of([&] { pipeline_chunks(spec); });
}

TEST(PipelineChunks, EvenWithVirtualStages) {
  auto const chunks =
      pipeline_chunks({.ranks = 2, .chunks_per_rank = 2, .decoder_layers = 8, .mtp_layers = 1});
  ASSERT_EQ(chunks.size(), 4U);
  for (std::size_t s = 0; s < 4; ++s) {
    EXPECT_EQ(chunks[s].rank, static_cast<int>(s % 2));
    EXPECT_EQ(chunks[s].rank_chunk, static_cast<int>(s / 2));
    EXPECT_EQ(chunks[s].decoder,
              (Share{{static_cast<Index>(2 * s), static_cast<Index>(2 * s + 2)}}));
    EXPECT_EQ(chunks[s].embedding, s == 0);
    EXPECT_EQ(chunks[s].head, s == 3);
    EXPECT_EQ(extent(chunks[s].mtp), s == 3 ? 1 : 0);
  }
}

TEST(PipelineChunks, EmbeddingAndLossCountAsLayers) {
  EXPECT_EQ(decoder_sizes({.ranks = 4,
                           .decoder_layers = 14,
                           .account_for_embedding = true,
                           .account_for_loss = true}),
            (std::vector<Index>{3, 4, 4, 3}));
  EXPECT_EQ(decoder_sizes({.ranks = 2, .decoder_layers = 1, .account_for_embedding = true}),
            (std::vector<Index>{0, 1}));
}

TEST(PipelineChunks, FirstAndLastStageOfTheirOwnSize) {
  EXPECT_EQ(
      decoder_sizes(
          {.ranks = 4, .decoder_layers = 12, .first_stage_layers = 3, .last_stage_layers = 1}),
      (std::vector<Index>{3, 4, 4, 1}));
  EXPECT_EQ(decoder_sizes({.ranks = 3, .decoder_layers = 10, .first_stage_layers = 2}),
            (std::vector<Index>{2, 4, 4}));
  EXPECT_EQ(decoder_sizes({.ranks = 3, .decoder_layers = 8, .last_stage_layers = 0}),
            (std::vector<Index>{4, 4, 0}));
  EXPECT_EQ(decoder_sizes(
                {.ranks = 2, .chunks_per_rank = 2, .decoder_layers = 6, .last_stage_layers = 2}),
            (std::vector<Index>{2, 1, 2, 1}));
  EXPECT_EQ(decoder_sizes({.ranks = 1, .decoder_layers = 6, .first_stage_layers = 6}),
            (std::vector<Index>{6}));
}

TEST(PipelineChunks, WrittenLayout) {
  auto const chunks = pipeline_chunks({.ranks = 16,
                                       .chunks_per_rank = 2,
                                       .decoder_layers = 61,
                                       .mtp_layers = 1,
                                       .layout = "Ettt|(tt|)*29,m|L"});
  ASSERT_EQ(chunks.size(), 32U);
  Index layers = 0;
  for (PipelineChunk const& chunk : chunks) layers += extent(chunk.decoder);
  EXPECT_EQ(layers, 61);
  EXPECT_TRUE(chunks[0].embedding);
  EXPECT_EQ(chunks[0].decoder, (Share{{0, 3}}));
  EXPECT_EQ(chunks[16].decoder, (Share{{33, 35}})) << "second chunk of rank 0";
  EXPECT_EQ(chunks[30].rank, 14);
  EXPECT_EQ(extent(chunks[30].mtp), 1);
  EXPECT_TRUE(chunks[30].decoder.empty());
  EXPECT_TRUE(chunks[31].head);
  EXPECT_EQ(chunks[31].rank_chunk, 1);
}

TEST(PipelineChunks, LayoutIgnoresCommasAndWhiteSpaceAndRepeats) {
  EXPECT_EQ(decoder_sizes(
                {.ranks = 3, .decoder_layers = 7, .layout = " E t * 2 , | (t*2,t) * 1 | t t L "}),
            (std::vector<Index>{2, 3, 2}));
  EXPECT_EQ(decoder_sizes({.ranks = 4, .decoder_layers = 0, .layout = "E|*3L"}),
            (std::vector<Index>{0, 0, 0, 0}));
}

TEST(PipelineChunks, RefusalsNameBothNumbers) {
  struct Case {
    PipelineSpec spec;
    char const* part;
  };
  Case const cases[] = {
      {{.ranks = 3, .decoder_layers = 8}, "8 decoder layers cannot be spread evenly over 3 chunks"},
      {{.ranks = 0, .decoder_layers = 8}, "pp = 0"},
      {{.ranks = 2, .chunks_per_rank = 2, .decoder_layers = 7, .first_stage_layers = 3},
       "3 layers of the first stage cannot be spread evenly over 2"},
      {{.ranks = 2, .decoder_layers = 6, .first_stage_layers = 5, .last_stage_layers = 2},
       "first stage takes 5 and the last 2 layers, which does not fit 6"},
      {{.ranks = 2, .decoder_layers = 8, .first_stage_layers = 5, .last_stage_layers = 2},
       "does not fit 8"},
      {{.ranks = 1, .decoder_layers = 6, .first_stage_layers = 3, .last_stage_layers = 3},
       "cannot hold both"},
      {{.ranks = 4, .decoder_layers = 12, .first_stage_layers = 3, .account_for_loss = true},
       "set only one of"},
      {{.ranks = 4, .decoder_layers = 14, .account_for_loss = true}, "15 layers"},
      {{.ranks = 2, .decoder_layers = 2, .layout = "Et|t|L"},
       "it has 3 stages, but pp 2 x vpp 1 is 2"},
      {{.ranks = 2, .decoder_layers = 3, .layout = "Et|tL"},
       "it has 2 t and 0 m, but the model has 3"},
      {{.ranks = 2, .decoder_layers = 2, .mtp_layers = 1, .layout = "Et|tL"},
       "and 1 prediction depths"},
      {{.ranks = 1, .decoder_layers = 2000000000}, "are not supported"},
      {{.ranks = 100000, .chunks_per_rank = 100000, .decoder_layers = 1},
       "more than 100000 chunks"},
  };
  for (Case const& c : cases)
    EXPECT_NE(refusal(c.spec).find(c.part), std::string::npos)
        << c.part << " / " << refusal(c.spec);
}

TEST(PipelineChunks, LayoutTextIsRefusedWithItsColumn) {
  struct Case {
    char const* layout;
    char const* part;
  };
  for (Case const& c :
       {Case{"Et|xL", "column 4"}, Case{"E(tt|L", "'(' at column 2 is never closed"},
        Case{"E(tt)L", "group at column 2 needs a count"}, Case{"Et*L", "the '*' at column 3"},
        Case{"Et*2*2L", "column 5"}, Case{"E((t)*2)*2L", "column 3"},
        Case{"ttL", "it has 0 E and 1 L"}, Case{"EtL|L", "1 E and 2 L"}, Case{"E)L", "column 2"},
        Case{"E(t*99999)*99999L", "more than 100000"},
        Case{"Et*999999999999999999999L", "more than 100000"},
        Case{"E(t|)*60000L", "more than 100000"}}) {
    std::string const sentence = refusal({.ranks = 1, .decoder_layers = 1, .layout = c.layout});
    EXPECT_NE(sentence.find(c.part), std::string::npos) << c.layout << " gave: " << sentence;
  }
}

}  // namespace
}  // namespace reshard::test
