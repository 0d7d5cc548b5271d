// The Java client as the other side of encrypted topics. Run: java -cp 'LIB/*' Encryption.java SERVICE_URL KEYS_FOLDER
//
// One request a line on standard input, one answer a line on standard output; parts are separated by blanks, lists by
// commas, payloads are hexadecimal. Keys are NAME.pub and NAME.key in the folder.
//
//   send TOPIC COMPRESSION BATCHING KEYS PAYLOADS    -> sent COUNT
//   read TOPIC COUNT KEYS                            -> read PAYLOADS (with no private key but those of KEYS)
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.EncryptionKeyInfo;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.PulsarClient;

public class Encryption {
    private static final HexFormat HEX = HexFormat.of();

    record Keys(String folder, List<String> names) implements CryptoKeyReader {
        public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
            return new EncryptionKeyInfo(bytes(name, ".pub"), Map.of("owner", name));
        }

        public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
            return names.contains(name) ? new EncryptionKeyInfo(bytes(name, ".key"), metadata) : null;
        }

        private byte[] bytes(String name, String ending) {
            try {
                return Files.readAllBytes(Path.of(folder, name + ending));
            } catch (IOException error) {
                throw new IllegalArgumentException(error);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in));
        try (var client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                var parts = line.split(" ");
                try {
                    System.out.println(parts[0].equals("send") ? send(client, arguments[1], parts)
                            : read(client, arguments[1], parts));
                } catch (Exception error) {
                    System.out.println("failed " + error);
                }
                System.out.flush();
            }
        }
    }

    private static String send(PulsarClient client, String folder, String[] parts) throws Exception {
        var names = List.of(parts[4].split(","));
        var builder = client.newProducer().topic(parts[1]).compressionType(CompressionType.valueOf(parts[2]))
                .enableBatching(Boolean.parseBoolean(parts[3])).batchingMaxPublishDelay(1, TimeUnit.MINUTES)
                .cryptoKeyReader(new Keys(folder, names));
        names.forEach(builder::addEncryptionKey);
        try (var producer = builder.create()) {
            var payloads = parts[5].split(",");
            for (String payload : payloads) {
                producer.sendAsync(HEX.parseHex(payload));
            }
            producer.flush();
            return "sent " + payloads.length;
        }
    }

    private static String read(PulsarClient client, String folder, String[] parts) throws Exception {
        var keys = new Keys(folder, List.of(parts[3].split(",")));
        var payloads = new ArrayList<String>();
        try (var reader = client.newReader().topic(parts[1]).startMessageId(MessageId.earliest).cryptoKeyReader(keys)
                .create()) {
            for (int left = Integer.parseInt(parts[2]); left > 0; left--) {
                var message = reader.readNext(20, TimeUnit.SECONDS);
                if (message == null) {
                    return "failed: nothing more after " + payloads.size();
                }
                payloads.add(HEX.formatHex(message.getData()));
            }
        }
        return "read " + String.join(",", payloads);
    }
}
