import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.google.protobuf.MessageLite;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.Collection;
import java.util.Date;
import java.util.Map;
import org.apache.avro.generic.IndexedRecord;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.schema.GenericObject;
import org.apache.pulsar.common.api.proto.MessageMetadata;
import org.apache.pulsar.common.protocol.Commands;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.SchemaInfo;

/** What the Java client knows, as JSON: messages by their getters, entries by their metadata, ids, schemas, values. */
final class Render {
    private Render() {}

    static String base64(byte[] data) {
        return data == null ? null : Base64.getEncoder().encodeToString(data);
    }

    static ObjectNode message(Message<?> message) {
        ObjectNode out = Peer.JSON.createObjectNode()
                .put("id", base64(message.getMessageId().toByteArray()))
                .put("topic", message.getTopicName())
                .put("data", base64(message.getData()))
                .put("size", message.size())
                .put("key", message.getKey())
                .put("has_key", message.hasKey())
                .put("key_is_base64", message.hasBase64EncodedKey())
                .put("key_bytes", base64(message.getKeyBytes()))
                .put("ordering_key", base64(message.getOrderingKey()))
                .put("event_time", message.getEventTime())
                .put("publish_time", message.getPublishTime())
                .put("sequence_id", message.getSequenceId())
                .put("producer_name", message.getProducerName())
                .put("redelivery_count", message.getRedeliveryCount())
                .put("schema_version", base64(message.getSchemaVersion()))
                .put("replicated_from", message.getReplicatedFrom())
                .put("broker_publish_time", message.getBrokerPublishTime().orElse(null))
                .put("index", message.getIndex().orElse(null));
        ObjectNode properties = out.putObject("properties");
        message.getProperties().forEach(properties::put);
        message.getEncryptionCtx().ifPresent(context -> {
            ObjectNode encryption = out.putObject("encryption");
            encryption.put("encrypted", context.isEncrypted());
            encryption.put("batch_size", context.getBatchSize().orElse(null));
            ArrayNode names = encryption.putArray("keys");
            context.getKeys().keySet().forEach(names::add);
        });
        // What the bytes mean is asked last: an undecodable value must not hide the rest.
        try {
            out.set("value", value(message.getValue()));
        } catch (RuntimeException error) {
            out.put("value_error", String.valueOf(error));
        }
        return out;
    }

    static JsonNode id(MessageId id) {
        MessageIdAdv places = (MessageIdAdv) id;
        ObjectNode out = Peer.JSON.createObjectNode()
                .put("id", base64(id.toByteArray()))
                .put("ledger", places.getLedgerId())
                .put("entry", places.getEntryId())
                .put("partition", places.getPartitionIndex())
                .put("batch_index", places.getBatchIndex())
                .put("batch_size", places.getBatchSize())
                .put("text", id.toString());
        if (places.getFirstChunkMessageId() != null) {
            out.set("first_chunk", id(places.getFirstChunkMessageId()));
        }
        return out;
    }

    /** Renders a stored entry; fields that are not set are absent. */
    static JsonNode entry(ByteBuf headersAndPayload) {
        ObjectNode out = Peer.JSON.createObjectNode();
        ByteBuf rest = headersAndPayload.slice();
        Commands.parseBrokerEntryMetadataIfExist(rest);
        if (Commands.hasChecksum(rest)) {
            int told = Commands.readChecksum(rest);
            out.put("checksum_right", told == com.scurrilous.circe.checksum.Crc32cIntChecksum.computeChecksum(rest));
        }
        MessageMetadata metadata = Commands.parseMessageMetadata(rest);
        out.put("metadata_bytes", base64(metadata.toByteArray()));
        out.put("body", base64(ByteBufUtil.getBytes(rest)));
        ObjectNode fields = out.putObject("metadata");
        fields.put("producer_name", metadata.getProducerName());
        fields.put("sequence_id", metadata.getSequenceId());
        fields.put("publish_time", metadata.getPublishTime());
        ifSet(fields, "highest_sequence_id", metadata.hasHighestSequenceId(), metadata::getHighestSequenceId);
        ifSet(fields, "num_messages_in_batch", metadata.hasNumMessagesInBatch(), metadata::getNumMessagesInBatch);
        ifSet(fields, "uncompressed_size", metadata.hasUncompressedSize(), metadata::getUncompressedSize);
        ifSet(fields, "compression", metadata.hasCompression(), () -> metadata.getCompression().name());
        ifSet(fields, "partition_key", metadata.hasPartitionKey(), metadata::getPartitionKey);
        ifSet(fields, "key_is_base64", metadata.hasPartitionKeyB64Encoded(), metadata::isPartitionKeyB64Encoded);
        ifSet(fields, "null_partition_key", metadata.hasNullPartitionKey(), metadata::isNullPartitionKey);
        ifSet(fields, "ordering_key", metadata.hasOrderingKey(), () -> base64(metadata.getOrderingKey()));
        ifSet(fields, "event_time", metadata.hasEventTime(), metadata::getEventTime);
        ifSet(fields, "deliver_at_time", metadata.hasDeliverAtTime(), metadata::getDeliverAtTime);
        ifSet(fields, "null_value", metadata.hasNullValue(), metadata::isNullValue);
        ifSet(fields, "schema_version", metadata.hasSchemaVersion(), () -> base64(metadata.getSchemaVersion()));
        ifSet(fields, "uuid", metadata.hasUuid(), metadata::getUuid);
        ifSet(fields, "chunk_id", metadata.hasChunkId(), metadata::getChunkId);
        ifSet(fields, "num_chunks", metadata.hasNumChunksFromMsg(), metadata::getNumChunksFromMsg);
        ifSet(fields, "total_chunk_size", metadata.hasTotalChunkMsgSize(), metadata::getTotalChunkMsgSize);
        ifSet(fields, "encryption_algo", metadata.hasEncryptionAlgo(), metadata::getEncryptionAlgo);
        ifSet(fields, "encryption_param", metadata.hasEncryptionParam(), () -> base64(metadata.getEncryptionParam()));
        ArrayNode keys = fields.putArray("encryption_keys");
        metadata.getEncryptionKeysList().forEach(key -> keys.add(key.getKey()));
        ArrayNode clusters = fields.putArray("replicate_to");
        metadata.getReplicateTosList().forEach(clusters::add);
        ObjectNode properties = fields.putObject("properties");
        metadata.getPropertiesList().forEach(pair -> properties.put(pair.getKey(), pair.getValue()));
        return out;
    }

    private static void ifSet(ObjectNode out, String name, boolean set, java.util.function.Supplier<Object> value) {
        if (set) {
            out.putPOJO(name, value.get());
        }
    }

    static JsonNode info(SchemaInfo info) {
        if (info == null) {
            return null;
        }
        ObjectNode out = Peer.JSON.createObjectNode()
                .put("name", info.getName())
                .put("type", info.getType().name())
                .put("schema", base64(info.getSchema()));
        ObjectNode properties = out.putObject("properties");
        info.getProperties().forEach(properties::put);
        return out;
    }

    /**
     * Renders a value: bytes (protobuf messages too) as base64, old dates as milliseconds, new ones as ISO text, a pair
     * as {"key", "value"}, records of any kind as objects.
     */
    static JsonNode value(Object value) {
        if (value instanceof byte[] data) {
            return Peer.JSON.valueToTree(base64(data));
        } else if (value instanceof ByteBuffer buffer) {
            return Peer.JSON.valueToTree(base64(bytesOf(buffer)));
        } else if (value instanceof MessageLite message) {
            return Peer.JSON.valueToTree(base64(message.toByteArray()));
        } else if (value instanceof GenericObject generic) {
            return value(generic.getNativeObject());
        } else if (value instanceof KeyValue<?, ?> pair) {
            ObjectNode out = Peer.JSON.createObjectNode();
            out.set("key", value(pair.getKey()));
            out.set("value", value(pair.getValue()));
            return out;
        } else if (value instanceof IndexedRecord record) {
            ObjectNode out = Peer.JSON.createObjectNode();
            record.getSchema().getFields().forEach(field -> out.set(field.name(), value(record.get(field.pos()))));
            return out;
        } else if (value instanceof Map<?, ?> map) {
            ObjectNode out = Peer.JSON.createObjectNode();
            map.forEach((key, each) -> out.set(key.toString(), value(each)));
            return out;
        } else if (value instanceof Collection<?> list) {
            ArrayNode out = Peer.JSON.createArrayNode();
            list.forEach(each -> out.add(value(each)));
            return out;
        } else if (value instanceof Date date) {
            return Peer.JSON.valueToTree(date.getTime());
        }
        boolean asText = value instanceof java.time.temporal.Temporal
                || value instanceof CharSequence
                || value instanceof org.apache.avro.generic.GenericEnumSymbol;
        return Peer.JSON.valueToTree(asText ? value.toString() : value);
    }

    private static byte[] bytesOf(ByteBuffer buffer) {
        byte[] data = new byte[buffer.remaining()];
        buffer.duplicate().get(data);
        return data;
    }
}
